"""Loops share trainings, and a loop that a shared training does not reach is still judged."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from ckpt_surgery.measure.arguments import Levels
from ckpt_surgery.measure.kinds import FaultKind, LoopKind, SkipKind
from ckpt_surgery.measure.results import MODES, ModeReport
from ckpt_surgery.measure.switch import Switch, switch_checkpointing
from ckpt_surgery.measure.training import reversed_samples
from ckpt_surgery.measure.verify import verify
from tests.measure.toys import Layer, Model, model_of, values
from tests.zoo import planted
from tests.zoo.planted import switch_with

pytestmark = pytest.mark.torch


class Scaled(Model):
    """A model whose forward overwrites what an earlier backward needs: no two forwards may precede it."""

    scale: Tensor

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, values: Tensor) -> Any:
        self.scale.mul_(1.5)
        return super().forward(values) * self.scale


class TrainedOnly(Model):
    """A model that cannot be evaluated."""

    def forward(self, values: Tensor) -> Any:
        if not self.training:
            raise NotImplementedError
        return super().forward(values)


class AfterAStep(planted.Fault):
    """A recompute that is off once the weights have changed; nothing is held."""

    weights: float | None = None

    def sum(self) -> float:
        return sum(float(parameter.detach().sum()) for parameter in self.block.parameters())

    def first(self, function: Any, *args: Any) -> Any:
        self.weights = self.weights or self.sum()
        return function(*args)

    def again(self, function: Any, runs: int, *args: Any) -> Any:
        return function(args[0] * 1.01 if self.weights != self.sum() else args[0])


class NotTheLatest(planted.Fault):
    """A recompute that is off for any forward but the latest; nothing is held."""

    latest = 0.0

    def first(self, function: Any, *args: Any) -> Any:
        self.latest = float(args[0].detach().sum())
        return function(*args)

    def again(self, function: Any, runs: int, *args: Any) -> Any:
        return function(args[0] * 1.01 if self.latest != float(args[0].detach().sum()) else args[0])


def run(whole: Callable[..., Model], switch: Switch = switch_checkpointing) -> ModeReport:
    report = verify(model_of(Layer, Layer, whole=whole), values(), levels=["loop"], modes=MODES[0], switch=switch)
    return report.modes[0]


def loops(mode: ModeReport) -> set[str]:
    return {str(fault.details["loop"]) for fault in mode.faults}


@pytest.mark.parametrize(
    ("fault", "loop"),
    [
        (planted.GradientOverwritten, LoopKind.ACCUMULATION),
        (AfterAStep, LoopKind.STEPS),
        (planted.OffAfterEvaluation, LoopKind.STEPS),
        (NotTheLatest, LoopKind.TWO_FORWARDS),
        (planted.SecondBackward, LoopKind.RETAINED_GRAPH),
        (planted.FrozenBase, LoopKind.ADAPTERS),
    ],
)
def test_a_fault_is_seen_in_its_own_loop_and_in_no_other(fault: type[planted.Fault], loop: LoopKind) -> None:
    assert loops(run(Model, switch_with(fault))) == {loop}


def test_a_model_without_two_forwards_in_a_row_is_judged_in_other_loops() -> None:
    mode = run(Scaled)
    assert mode.outcome("loop") == "ok"
    assert [(skip.kind, skip.details["loop"]) for skip in mode.skips] == [
        (SkipKind.LOOP_NOT_RUN, LoopKind.TWO_FORWARDS)
    ]
    assert loops(run(Scaled, switch_with(planted.SecondBackward))) == {LoopKind.RETAINED_GRAPH}


def selectively(policy: Any) -> Switch:
    """Return a switch to checkpointing with torch's selective policy."""

    def switch(model: Any, mode: str | None) -> None:
        model.gradient_checkpointing_disable()
        if mode is not None:
            contexts = partial(create_selective_checkpoint_contexts, policy)
            model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": contexts})

    return switch


def test_a_second_backward_is_not_asked_of_a_selective_policy() -> None:
    mode = run(Model, selectively([torch.ops.aten.addmm.default]))
    assert mode.outcome("loop") == "ok"  # of its other parts
    assert [skip.kind for skip in mode.skips] == [SkipKind.ONE_BACKWARD]


def test_what_a_selective_policy_keeps_is_no_fault() -> None:
    kept = [torch.ops.aten.tanh.default, torch.ops.aten.mul.Tensor, torch.ops.aten.add.Tensor]
    levels: Levels = ["set", "cost"]
    report = verify(model_of(Layer, Layer), values(), levels=levels, modes=MODES[0], switch=selectively(kept))
    (mode,) = report.modes
    assert (mode.outcome("set"), mode.outcome("cost")) == ("ok", "skipped")
    assert [skip.kind for skip in mode.skips] == [SkipKind.SELECTIVE_POLICY]


def test_checkpointing_that_is_lost_after_the_first_step_is_reported() -> None:
    mode = run(Model, switch_with(planted.CheckpointLost))
    assert [fault.kind for fault in mode.faults] == [FaultKind.SAVING_LOST]
    assert not run(Model).faults


def test_a_model_that_cannot_be_evaluated_is_judged_all_the_same() -> None:
    mode = run(TrainedOnly)
    assert (mode.outcome("loop"), mode.skips) == ("ok", ())
    assert loops(run(TrainedOnly, switch_with(AfterAStep))) == {LoopKind.STEPS}


def test_samples_are_reversed_where_every_tensor_has_one_in_each_row() -> None:
    samples, labels, noise = torch.arange(6).reshape(3, 2), torch.arange(3), torch.tensor(0.5)
    reversed_ = reversed_samples({"samples": samples, "labels": labels, "noise": noise, "cache": None})
    assert torch.equal(reversed_["samples"], samples[[2, 1, 0]])
    assert torch.equal(reversed_["labels"], labels[[2, 1, 0]])
    assert (reversed_["noise"], reversed_["cache"]) == (noise, None)
    given = {"samples": samples, "starts": torch.arange(4)}
    assert reversed_samples(given) is given
