"""Blocks that take gradients, fill lists or count: no false alarm, and the cause if a training changes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn

from ckpt_surgery.measure.kinds import SkipKind
from ckpt_surgery.measure.results import ModeReport
from ckpt_surgery.measure.verify import verify
from tests.measure import toys
from tests.measure.test_switch import Layer, Stack, inputs, own_switch
from tests.measure.toys import HoardingLayer, model_of, values

pytestmark = pytest.mark.torch


def looked_at(model: nn.Module) -> ModeReport:
    (mode,) = verify(model, inputs(), switch=own_switch, modes="non_reentrant").modes
    return mode


class Forces(Layer):
    """A layer that adds the gradient of an energy, as interatomic potentials do."""

    def forward(self, hidden: Tensor) -> Tensor:
        energy = super().forward(hidden).tanh().sum()
        (force,) = torch.autograd.grad(energy, hidden, create_graph=True)
        return hidden + force


class Filling(Layer):
    def forward(self, hidden: Tensor, streams: list[Tensor]) -> Tensor:  # type: ignore[override]
        hidden = super().forward(hidden)
        streams.append(hidden.exp())
        return hidden


class Of(Stack):
    def __init__(self, kind: type[Layer]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(kind() for _ in range(3))


class WithStreams(Of):
    def forward(self, hidden: Tensor) -> Tensor:
        streams: list[Tensor] = []
        hidden = self.first(hidden)
        for block in self.blocks:
            hidden = block(hidden, streams) if self.function is None else self.function(block, hidden, streams)
        return hidden + torch.stack(streams).sum(0)


class EnergyAndForces(Of):
    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden.requires_grad_()
        energy = super().forward(hidden).pow(2).sum()
        (force,) = torch.autograd.grad(energy, hidden, create_graph=True)
        return energy + force.pow(2).sum()


class Forgetful(Of):
    """A layer that leaves an argument out of the checkpointed call."""

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = self.first(hidden)
        for block in self.blocks:
            hidden = block(hidden, hidden.tanh()) if self.function is None else self.function(block, hidden)
        return hidden


class Conditioned(Layer):
    def forward(self, hidden: Tensor, condition: Tensor | None = None) -> Tensor:
        hidden = super().forward(hidden)
        return hidden if condition is None else hidden + condition


@pytest.mark.parametrize("model", [Of(Forces), WithStreams(Filling)], ids=["forces", "lists"])
def test_blocks_that_take_gradients_or_fill_lists_are_no_faults(model: nn.Module) -> None:
    mode = looked_at(model)
    assert mode.status == "ok", mode.faults
    assert {mode.outcome("recompute"), mode.outcome("cost"), mode.outcome("loop")} == {"ok"}


def test_savings_are_not_judged_if_the_forward_takes_gradients() -> None:
    mode = looked_at(EnergyAndForces(Layer))
    assert (mode.status, mode.outcome("recompute"), mode.outcome("cost"), mode.outcome("loop")) == (
        "ok",
        "ok",
        "skipped",
        "ok",
    )
    assert SkipKind.GRADIENT_IN_FORWARD in {skip.kind for skip in mode.skips}


def test_the_loop_is_judged_although_the_cost_has_failed() -> None:
    (mode,) = verify(model_of(HoardingLayer, toys.Layer), values(), modes="non_reentrant").modes
    assert {fault.level for fault in mode.faults} == {"cost"}
    assert mode.outcome("loop") == "ok"


def test_an_argument_that_the_checkpointed_call_leaves_out_is_named() -> None:
    faults = looked_at(Forgetful(Conditioned)).faults
    assert {(fault.rule, fault.explanation and fault.explanation.names["argument"]) for fault in faults} == {
        ("CKPT002", "condition")
    }
