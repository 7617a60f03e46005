"""What requirements on transformers rule out, and the rules that ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery.codemods.tree.requirements import only_before, only_since
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
    ],
)
def test_a_rule_is_silent_where_the_fault_is_ruled_out(
    tmp_path: Path, code: str, script: str, silent: str, heard: str
) -> None:
    for name, requirement in (("silent", silent), ("heard", heard)):
        tree(tmp_path / name, {"train.py": script, "requirements.txt": f"transformers{requirement}\n"})
    assert found(tmp_path / "silent", code) == []
    assert [finding.code for finding in found(tmp_path / "heard", code)] == [code]
