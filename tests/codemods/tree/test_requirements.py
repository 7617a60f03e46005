"""What requirements on transformers rule out or admit, and the rules that ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery.codemods.tree.requirements import admits_old_releases, only_before, only_since
from ckpt_surgery.static import snapshot
from tests.codemods.tools import found, tree

SWITCHES_ON = """
from accelerate import Accelerator
from transformers import AutoModelForCausalLM

accelerator = Accelerator()
model = AutoModelForCausalLM.from_pretrained("m")
model.gradient_checkpointing_enable()
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    accelerator.backward(model(**batch).loss)
"""
ADAPTERS = """
from accelerate import Accelerator, DeepSpeedPlugin
from peft import get_peft_model

accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(zero_stage=3))
model = get_peft_model(model, config)
model.gradient_checkpointing_enable()
model, optimizer = accelerator.prepare(model, optimizer)
accelerator.backward(model(batch).loss)
"""
PATCHES = """
from transformers.models.llama import modeling_llama

modeling_llama.LlamaDecoderLayer.forward = fused
"""

CACHED = """
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer


class FooLayer(GradientCheckpointingLayer):
    def forward(self, hidden_states, past_key_value=None):
        return hidden_states


class FooModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer() for _ in range(2)])

    def forward(self, hidden_states, past=None):
        for layer in self.layers:
            hidden_states = layer(hidden_states, past_key_value=past)
        return hidden_states
"""
RENAMED = CACHED.replace("past_key_value", "past_key_values")
LATEST = CACHED.replace("past_key_value", "cache")


@pytest.mark.parametrize("requirement", ["==5.12.1", ">=5.0", ">=5.0.0,<6", "~=5.1", ">5.0", "==5.*"])
def test_releases_before_five_are_ruled_out(requirement: str) -> None:
    assert only_since("5.0", [f"transformers{requirement}"])
    assert not only_before("5.0", [f"transformers{requirement}"])


@pytest.mark.parametrize("requirement", ["==4.46.0", "<5", "<=4.57.6", ">=4.40,<5.0", ">=4.40,!=4.41,<4.50"])
def test_five_and_later_are_ruled_out(requirement: str) -> None:
    assert only_before("5.0", [f"transformers{requirement}"])
    assert not only_since("5.0", [f"transformers{requirement}"])


@pytest.mark.parametrize("requirement", ["", ">=4.40", "!=5.0", "<=5", "@git+https://x/y", "==four", "~=4.40"])
def test_nothing_is_ruled_out(requirement: str) -> None:
    assert not only_since("5.0", [f"transformers{requirement}"])
    assert not only_before("5.0", [f"transformers{requirement}"])


def test_all_that_name_releases_must_agree() -> None:
    assert only_since("5.0", ["transformers", "transformers>=5.2"])
    assert not only_since("5.0", ["transformers>=4.40", "transformers>=5.2"])
    assert not only_since("5.0", ["transformers@git+https://x/y", "transformers>=5.2"])
    assert not only_since("5.0", [])


@pytest.mark.parametrize(
    ("code", "script", "silent", "heard"),
    [
        ("CKPT104", SWITCHES_ON, "==5.12.1", ">=4.40"),
        ("CKPT105", ADAPTERS, "==4.46.0", ">=4.46.0"),
        ("CKPT013", PATCHES, "==4.46.0", "==5.23.0"),
        ("CKPT013", PATCHES, "<=5.22.0", "<=5.23"),
        ("CKPT008", CACHED, "==4.57.0", "==5.23.0"),
        ("CKPT008", CACHED, "<=5.6.0", "<=5.17"),
        ("CKPT008", RENAMED, "==5.23.0", "==5.24.0"),
        ("CKPT008", RENAMED, "==4.53.0", "==4.52.4"),
        ("CKPT008", LATEST, ">=5.24", "==5.23.0"),
    ],
)
def test_a_rule_is_silent_where_the_fault_is_ruled_out(
    tmp_path: Path, code: str, script: str, silent: str, heard: str
) -> None:
    for name, requirement in (("silent", silent), ("heard", heard)):
        tree(tmp_path / name, {"train.py": script, "requirements.txt": f"transformers{requirement}\n"})
    assert found(tmp_path / "silent", code) == []
    assert [finding.code for finding in found(tmp_path / "heard", code)] == [code]


@pytest.mark.parametrize(
    ("text", "requirement", "said"),
    [
        (CACHED, ">=4.53", "does not clear from transformers 5.17 on"),
        (CACHED, "==5.23.0", "does not clear (it clears use_cache, past_key_values, layer_past)"),
        (RENAMED, ">=4.53", "does not clear from transformers 5.24 on"),
        (LATEST, ">=4.53", "does not clear before transformers 5.24"),
        (CACHED, "==4.52.4", "does not clear (it clears nothing)"),
    ],
)
def test_what_only_some_releases_clear_is_reported_with_the_release(
    tmp_path: Path, text: str, requirement: str, said: str
) -> None:
    tree(tmp_path, {"modeling_foo.py": text, "requirements.txt": f"transformers{requirement}\n"})
    (finding,) = found(tmp_path, "CKPT008")
    assert said in finding.message


def test_the_trees_own_layer_is_asked_before_the_requirement(tmp_path: Path) -> None:
    own = 'class GradientCheckpointingLayer:\n    def __call__(self, **kwargs):\n        "past_key_value" in kwargs\n'
    tree(
        tmp_path,
        {"foo/modeling_foo.py": CACHED, "foo/modeling_layers.py": own, "setup.py": '"transformers==5.23.0"\n'},
    )
    assert found(tmp_path, "CKPT008") == []


@pytest.mark.parametrize("requirement", ["", "transformers==5.23.0\n"], ids=["none", "one"])
def test_the_installed_layer_is_asked_where_there_is_no_requirement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requirement: str
) -> None:
    layers = (
        'class GradientCheckpointingLayer:\n    def __call__(self, **kwargs):\n        "past_key_value" in kwargs\n'
    )
    tree(tmp_path, {"installed.py": layers, "foo/modeling_foo.py": CACHED, "foo/requirements.txt": requirement})
    monkeypatch.setattr(snapshot, "installed_layers", lambda: str(tmp_path / "installed.py"))
    assert [finding.code for finding in found(tmp_path / "foo", "CKPT008")] == ["CKPT008"] * bool(requirement)


@pytest.mark.parametrize(
    ("specifier", "admits"),
    [
        ("", False),
        ("!=4.53.0", False),
        ("<6", False),
        (">=4.52", False),
        (">=4.52.0.dev0", False),
        (">=5", False),
        ("~=4.57.6", False),
        ("==4.52.*", False),
        (">=4.40,>=4.52", False),
        (">=4.51.3", True),
        (">4.51", True),
        ("==4.48.0", True),
        ("==4.51.*", True),
        ("<4.52", True),
        ("<4.52.0", True),
        ("<=4.51.3", True),
        ("<4.52.4", False),
        (">=4.41,<5", True),
        ("===what", False),
        (" is what it needs", False),
    ],
)
def test_a_bound_before_the_first_release_with_layers_admits_old_ones(specifier: str, admits: bool) -> None:
    assert admits_old_releases(f"transformers{specifier}") is admits
