"""Remote code with the switch of transformers before 4.35: its checkpointing before and after `apply`."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from transformers import PretrainedConfig

from ckpt_surgery import Report, apply, check, verify
from ckpt_surgery.runtime.surgery.wrap import wrap_blocks

pytestmark = [pytest.mark.both]

LAYERS = """
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer


class FooAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 16)
        self.down = nn.Linear(16, 4)

    def forward(self, hidden_states):
        return self.down(torch.tanh(self.up(hidden_states)))


class FooLayer(GradientCheckpointingLayer):
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
            hidden_states = layer(hidden_states)
        return hidden_states
"""


def loaded(file: Path) -> Any:
    torch.manual_seed(0)
    return runpy.run_path(str(file))["FooModel"](PretrainedConfig()).double().train()


def verdict(model: Any) -> Report:
    values = torch.randn(2, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return verify(model, {"values": values}, levels=["recompute", "set", "values", "cost"])


def test_layers_are_never_recomputed_until_the_switch_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "modeling_foo.py"
    file.write_text(LAYERS, encoding="utf-8")
    assert [finding.code for finding in check([file]).findings] == ["CKPT011"]
    model = loaded(file)
    faults = [fault for _, fault in verdict(model).faults if fault.level == "recompute"]
    assert [fault.subjects for fault in faults] == [("layers.0", "layers.1", "layers.2")] * 2
    assert all("FooPreTrainedModel switches checkpointing on by a method of its own" in str(fault) for fault in faults)
    assert {fault.rule for fault in faults} == {"CKPT011"}
    with wrap_blocks(model):
        assert verdict(model).ok, "a live repair takes the place of the switch"
    apply([file])
    assert "_set_gradient_checkpointing" not in file.read_text(encoding="utf-8")
    assert verdict(loaded(file)).ok
