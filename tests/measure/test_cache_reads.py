"""Remote code that reads its blocks' caches under its own `use_cache`: a repair's effect on its training."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from ckpt_surgery import apply, check, verify
from ckpt_surgery.codemods.finding import Applicability
from tests.measure.test_outdated_switch import loaded

pytestmark = [pytest.mark.both]

MODEL = """
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel


class FooAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 16)
        self.down = nn.Linear(16, 4)

    def forward(self, hidden_states):
        return self.down(torch.tanh(self.up(hidden_states)))


class FooLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = FooAttention()

    def forward(self, hidden_states, past_key_values=None, use_cache=False):
        outputs = (hidden_states + self.self_attn(hidden_states),)
        if use_cache:
            outputs += (past_key_values,)
        return outputs


class FooModel(PreTrainedModel):
    config_class = PretrainedConfig
    main_input_name = "values"
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer() for _ in range(3)])
        self.first = nn.Linear(4, 4)
        self.gradient_checkpointing = False

    def forward(self, values, past_key_values=None, use_cache=True):
        hidden_states = self.first(values)
GUARD
        for layer in self.layers:
            outputs = layer(hidden_states, past_key_values=past_key_values, use_cache=use_cache)
            hidden_states = outputs[0]
            if use_cache:
                past_key_values = outputs[1]
        return hidden_states, past_key_values
"""
GUARD = """\
        if self.gradient_checkpointing and self.training:
            use_cache = False"""


def train(file: Path) -> None:
    model = loaded(file)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model(torch.ones(2, 5, 4, dtype=torch.float64))[0].sum().backward()


def applicability(file: Path) -> list[tuple[str, Applicability]]:
    return [(finding.code, finding.applicability) for finding in check([file]).findings]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "modeling_foo.py"


def test_without_a_guard_the_repair_is_unsafe_because_training_would_stop(file: Path) -> None:
    file.write_text(MODEL.replace("GUARD\n", ""), encoding="utf-8")
    train(file)
    assert applicability(file) == [("CKPT001", Applicability.UNSAFE)]
    assert apply([file]).changes == ()
    train(file)
    assert apply([file], unsafe=True).changes
    with pytest.raises(IndexError, match="tuple index out of range"):
        train(file)


def test_with_the_guard_the_finding_asks_for_the_repair_is_safe_and_trains(file: Path) -> None:
    file.write_text(MODEL.replace("GUARD", GUARD), encoding="utf-8")
    assert applicability(file) == [("CKPT001", Applicability.SAFE)]
    apply([file])
    train(file)
    values = torch.randn(2, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert verify(loaded(file), {"values": values}, levels=["recompute", "set", "values", "cost"]).ok
