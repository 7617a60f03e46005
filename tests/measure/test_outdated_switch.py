"""Remote code with the switch of transformers before 4.35: its checkpointing before and after `apply`."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from ckpt_surgery import Report, apply, check, verify
from ckpt_surgery.runtime.surgery.wrap import wrap_blocks
from ckpt_surgery.static.snapshot import RULE_CODES

pytestmark = [pytest.mark.both]

MODEL = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer


class FooAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 16)
        self.down = nn.Linear(16, 4)

    def forward(self, hidden_states):
        return self.down(torch.tanh(self.up(hidden_states)))


class FooLayer(BASE):
    def __init__(self):
        super().__init__()
        self.self_attn = FooAttention()

    def forward(self, hidden_states):
        return hidden_states + self.self_attn(hidden_states)


class FooPreTrainedModel(PreTrainedModel):
    config_class = PretrainedConfig
    supports_gradient_checkpointing = True

    def _set_gradient_checkpointing(self, module, value=False):
        if isinstance(module, FooModel):
            module.gradient_checkpointing = value


class FooModel(FooPreTrainedModel):
    main_input_name = "values"

    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer() for _ in range(3)])
        self.first = nn.Linear(4, 4)
        self.gradient_checkpointing = False

    def forward(self, values):
        hidden_states = self.first(values)
        for layer in self.layers:
CALL
        return hidden_states
"""
BRANCH = """\
            if self.gradient_checkpointing and self.training:
                hidden_states = checkpoint(layer, hidden_states, use_reentrant=False)
            else:
                hidden_states = layer(hidden_states)"""
INLINE = MODEL.replace("BASE", "nn.Module").replace("CALL", BRANCH)
LAYERS = MODEL.replace("BASE", "GradientCheckpointingLayer").replace(
    "CALL", "            hidden_states = layer(hidden_states)"
)
numbers = itertools.count()


def loaded(file: Path) -> Any:
    """Import the file anew and return a model of its class."""
    spec = importlib.util.spec_from_file_location(f"modeling_foo_{next(numbers)}", file)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    return module.FooModel(module.PretrainedConfig()).double().train()


def verdict(file: Path) -> Report:
    values = torch.randn(2, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return verify(loaded(file), {"values": values}, levels=["recompute", "set", "values", "cost"])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "modeling_foo.py"


def test_layers_are_never_recomputed_until_the_switch_is_gone(file: Path) -> None:
    file.write_text(LAYERS, encoding="utf-8")
    assert [finding.code for finding in check([file]).findings] == ["CKPT011"]
    before = verdict(file)
    faults = [fault for _, fault in before.faults if fault.level == "recompute"]
    assert [fault.subjects for fault in faults] == [("layers.0", "layers.1", "layers.2")] * 2
    assert all("FooPreTrainedModel switches checkpointing on by a method of its own" in str(fault) for fault in faults)
    assert {fault.rule for fault in faults} == {"CKPT011"}
    apply([file])
    assert "_set_gradient_checkpointing" not in file.read_text(encoding="utf-8")
    assert verdict(file).ok


def test_checkpointing_that_worked_works_after_the_branch_is_gone(file: Path) -> None:
    file.write_text(INLINE, encoding="utf-8")
    assert all(fault.level != "recompute" for mode, fault in verdict(file).faults if mode == "non_reentrant")
    apply([file], select=RULE_CODES)
    text = file.read_text(encoding="utf-8")
    assert "class FooLayer(GradientCheckpointingLayer)" in text
    assert "_set_gradient_checkpointing" not in text
    assert verdict(file).ok


def test_the_branch_alone_would_take_the_checkpointing_with_it(file: Path) -> None:
    file.write_text(INLINE, encoding="utf-8")
    apply([file], select=RULE_CODES)
    switch = LAYERS[LAYERS.index("    def _set_gradient_checkpointing") : LAYERS.index("class FooModel")].rstrip()
    text = file.read_text(encoding="utf-8")
    with_switch = text.replace(
        "supports_gradient_checkpointing = True\n", f"supports_gradient_checkpointing = True\n{switch}\n"
    )
    assert with_switch != text
    file.write_text(with_switch, encoding="utf-8")
    assert not verdict(file).ok


def test_a_live_repair_takes_the_place_of_the_switch(file: Path) -> None:
    file.write_text(LAYERS, encoding="utf-8")
    model = loaded(file)
    with wrap_blocks(model):
        values = torch.ones(2, 5, 4, dtype=torch.float64)
        assert verify(model, {"values": values}, levels=["recompute", "set", "values", "cost"]).ok
