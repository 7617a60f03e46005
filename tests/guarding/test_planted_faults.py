"""A dozen trainings, each with a reported fault, which is named, and without it, where nothing is.

Each is a script from building its model to its last step. Ranks are in `test_ranks`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ckpt_surgery import SurgeryError, guard, wrap_blocks
from ckpt_surgery.guarding.faults import CoverageCause, GuardFault, GuardFaultKind
from ckpt_surgery.guarding.proof import ProofStatus
from ckpt_surgery.guarding.report import GuardReport
from tests.guarding.test_guard import Way, enable, train
from tests.measure.toys import Model, SureLayer, model_of

pytestmark = [pytest.mark.both, pytest.mark.torch]

# where the layer itself wraps its forward, another one in its place leaves it out
WRAPS_FORWARD = hasattr(SureLayer.forward, "__wrapped__")


def fused(layer: Any, hidden_states: Tensor) -> Tensor:
    """Compute what `SureLayer` does, as a fused kernel would."""
    return torch.sin(torch.exp(torch.tanh(layer.linear(hidden_states))))


def fresh() -> Any:
    """Return a new class of blocks, safe to patch."""

    class Fresh(SureLayer):
        def forward(self, hidden_states: Tensor) -> Tensor:
            return fused(self, hidden_states)

    return Fresh


def forward_patched_on_the_class(faulty: bool) -> nn.Module:
    block = fresh()
    model = model_of(block, block)
    enable(model)
    if faulty:
        block.forward = fused
    return model


def forward_patched_on_the_instance(faulty: bool) -> nn.Module:
    model = model_of(SureLayer, SureLayer)
    enable(model)
    if faulty:
        layer = model.layers[1]
        vars(layer)["forward"] = lambda hidden_states: fused(layer, hidden_states)
    return model


class Caching(SureLayer):
    """A layer that adds to a state passed from block to block; the `sound` one adds to a copy."""

    sound = True

    def forward(self, hidden_states: Tensor, state: Any = None) -> Tensor:
        if not self.sound:
            state[0] = state[0] + hidden_states.detach().mean()
            return torch.tanh(self.linear(hidden_states) * state[0])
        return torch.tanh(self.linear(hidden_states) * (state[0] + hidden_states.detach().mean()))


class Stateful(Model):
    def forward(self, values: Tensor) -> Any:
        hidden_states, state = self.first(values), [torch.ones(())]
        for layer in self.layers:
            hidden_states = layer(hidden_states, state=state)
        return self.last(hidden_states)


def cache_written(faulty: bool) -> nn.Module:
    model = model_of(Caching, Caching, whole=Stateful)
    for layer in model.layers:
        cast(Any, layer).sound = not faulty
    enable(model)
    return model


class Noisy(SureLayer):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return torch.tanh(self.linear(hidden_states) * torch.rand_like(hidden_states))


class Exchanged(SureLayer):
    """A layer with a frozen weight."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return torch.tanh(self.linear(hidden_states) + self.frozen(hidden_states))


def weights_exchanged(faulty: bool) -> nn.Module:
    """Add a patch to a weight while the model's forward runs, and remove it again."""
    model = model_of(SureLayer, Exchanged)
    enable(model)
    weight = cast(Any, model.layers[1]).frozen.weight
    patched, plain = weight.data + 1, weight.data

    def put(values: Tensor, *_: Any) -> None:
        weight.data = values

    if faulty:
        model.register_forward_pre_hook(partial(put, patched))
        model.register_forward_hook(partial(put, plain))
    return model


def weights_patched_in_place(faulty: bool) -> nn.Module:
    """Patch the weight's memory through `data`, which counts no writes."""
    model = model_of(SureLayer, Exchanged)
    enable(model)
    weight = cast(Any, model.layers[1]).frozen.weight
    if faulty:
        model.register_forward_pre_hook(lambda *_: void(weight.data.add_(1)))
        model.register_forward_hook(lambda *_: void(weight.data.sub_(1)))
    return model


def void(_: object) -> None:
    """Return nothing."""


class Normed(SureLayer):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.norm(self.linear(hidden_states)).tanh()  # type: ignore[no-any-return]


def statistics(faulty: bool) -> nn.Module:
    model = model_of(Normed, SureLayer)
    (enable if faulty else wrap_blocks)(model)
    return model


class Logged(SureLayer):
    """A layer that logs to lists and counts; a `quiet` one sets an attribute to its present value."""

    quiet = False

    def __init__(self) -> None:
        super().__init__()
        self.log: list[float] = []
        self.counts = {"runs": 0}
        self.last: Tensor | None = None

    def forward(self, hidden_states: Tensor) -> Tensor:
        self.last = hidden_states.detach() + 1
        if not self.quiet:
            self.counts["runs"] += 1
            self.log.append(float(self.last.sum()))
        return torch.tanh(self.linear(hidden_states))


def history(faulty: bool, way: Way = enable) -> nn.Module:
    model = model_of(Logged, SureLayer)
    cast(Any, model.layers[0]).quiet = not faulty
    way(model)
    return model


def history_of_a_surgery(faulty: bool) -> nn.Module:
    return history(faulty, wrap_blocks)


def block_in_evaluation_mode(faulty: bool) -> nn.Module:
    model = model_of(SureLayer, SureLayer)
    enable(model)
    model.layers[0].train(not faulty)
    return model


class Around(Model):
    """A model that checkpoints its blocks as a sharding wrapper does."""

    around = True

    def forward(self, values: Tensor) -> Any:
        hidden_states = self.first(values)
        for layer in self.layers:
            hidden_states = (
                checkpoint(layer, hidden_states, use_reentrant=True) if self.around else layer(hidden_states)
            )
        return self.last(hidden_states)


def random_numbers_not_kept(faulty: bool) -> nn.Module:
    model = model_of(Noisy, SureLayer)
    cast(Any, model).gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": not faulty})
    return model


def switched_on_twice(faulty: bool) -> nn.Module:
    model = model_of(SureLayer, SureLayer, whole=Around)
    cast(Any, model).around = faulty
    enable(model)
    return model


def plain_blocks(faulty: bool) -> nn.Module:
    if not faulty:
        return block_in_evaluation_mode(False)

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        forward = fused

    model = model_of(Plain, Plain)
    model.gradient_checkpointing = True
    return model


class InLoop(Model):
    """A model whose checkpointed function looks its block up in a loop variable, or has it `bound`."""

    bound = True

    def forward(self, values: Tensor) -> Any:
        hidden_states = self.first(values)
        for layer in self.layers:
            if self.bound:
                hidden_states = cast("Tensor", checkpoint(layer, hidden_states, use_reentrant=False))
            else:
                hidden_states = cast("Tensor", checkpoint(lambda h: layer(h), hidden_states, use_reentrant=False))  # noqa: B023
        return self.last(hidden_states)


def bound_late(faulty: bool) -> nn.Module:
    """Return blocks that only their checkpoint identifies as blocks."""
    model = model_of(SureLayer, SureLayer, whole=InLoop)
    model.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)).to(model.first.weight)
    cast(Any, model).bound = not faulty
    return model


class Reading(SureLayer):
    """A layer that reads features from a bank that the model fills."""

    def __init__(self) -> None:
        super().__init__()
        self.bank: list[Tensor] = []

    def forward(self, hidden_states: Tensor) -> Tensor:
        return torch.tanh(self.linear(sum(self.bank, hidden_states)))


class Banked(Model):
    """A model that empties the banks before the backward, or before the next forward."""

    early = False

    def forward(self, values: Tensor) -> Any:
        banks = [cast(Any, layer).bank for layer in self.layers]
        for bank in banks:
            bank[:] = [torch.ones(4)]
        result = super().forward(values)
        for bank in banks if self.early else ():
            bank.clear()
        return result


def bank_emptied(faulty: bool) -> nn.Module:
    model = model_of(Reading, Reading, whole=Banked)
    cast(Any, model).early = faulty
    enable(model)
    return model


@dataclass(frozen=True)
class Planted:
    """A training, its fault, the blocks or parameters concerned, and the expected message."""

    build: Callable[[bool], nn.Module]
    kind: GuardFaultKind
    subjects: tuple[str, ...]
    said: str
    cause: CoverageCause = CoverageCause.UNKNOWN


BOTH = ("layers.0", "layers.1")
NOT, AGAIN = GuardFaultKind.NOT_RECOMPUTED, GuardFaultKind.RECOMPUTED_AGAIN
WRONG = GuardFaultKind.WRONG_GRADIENTS
PLANTED = [
    Planted(block_in_evaluation_mode, NOT, ("layers.0",), "call model.train()", CoverageCause.EVALUATION),
    Planted(plain_blocks, NOT, BOTH, "not a checkpointing layer", CoverageCause.PLAIN),
    Planted(switched_on_twice, AGAIN, BOTH, "switched on twice", CoverageCause.TWICE),
    Planted(weights_exchanged, GuardFaultKind.OTHER_RECOMPUTE, ("layers.1", "frozen.weight"), "frozen.weight changed"),
    Planted(weights_patched_in_place, GuardFaultKind.OTHER_RECOMPUTE, ("layers.1", "frozen.weight"), "frozen.weight"),
    Planted(bank_emptied, GuardFaultKind.OTHER_RECOMPUTE, ("layers.0",), "bank (1 entry, and then 0 entries) changed"),
    Planted(bound_late, GuardFaultKind.OTHER_BLOCK, ("layers.1", "layers.0"), "ran block layers.1 in their place"),
    Planted(statistics, GuardFaultKind.WRITTEN_TWICE, ("layers.0", "norm.running_mean"), "once more in its recompute"),
    Planted(history, GuardFaultKind.GROWN_TWICE, ("layers.0", "counts"), "adds to log, counts in its forward"),
    Planted(history_of_a_surgery, GuardFaultKind.GROWN_TWICE, ("layers.0", "counts"), "adds to log, counts in its"),
    Planted(random_numbers_not_kept, WRONG, ("layers.0",), "drew others", CoverageCause.DRAWN_ANEW),
    Planted(cache_written, WRONG, ("layers.0",), "other gradients than it has without"),
]
if WRAPS_FORWARD:
    PLANTED += [
        Planted(forward_patched_on_the_class, NOT, BOTH, "was replaced", CoverageCause.REPLACED),
        Planted(forward_patched_on_the_instance, NOT, ("layers.1",), "was replaced", CoverageCause.REPLACED),
    ]
every = pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.build.__name__)


def watched(model: nn.Module) -> GuardReport:
    with guard(model, on_fault="collect", patience=3) as watching:
        train(model)
        return watching.report()


def names(fault: GuardFault) -> tuple[str, ...]:
    """Return the block of a wrong gradient, and what else a fault names."""
    return fault.subjects[:1] if fault.kind is WRONG else fault.subjects


@every
def test_the_fault_is_named(planted: Planted) -> None:
    report = watched(planted.build(True))
    fault = next(fault for fault in report.faults if fault.kind is planted.kind)
    assert set(planted.subjects) <= set(names(fault))
    assert planted.said in str(fault)
    assert fault.cause is planted.cause


@every
def test_without_the_fault_there_is_no_alarm_and_all_is_proved(planted: Planted) -> None:
    report = watched(planted.build(False))
    assert report.faults == ()
    assert {row.proof.status for row in report.blocks} == {ProofStatus.PROVED}


RUNS = itertools.count()


class Routed(SureLayer):
    """A layer that routes each token to one of two experts; one that `drifts` changes experts in each run."""

    drifts = False

    def __init__(self) -> None:
        super().__init__()
        self.router, self.other = nn.Linear(4, 2), nn.Linear(4, 4)

    def forward(self, hidden_states: Tensor) -> Tensor:
        scores = self.router(hidden_states)
        if self.drifts:
            scores = scores * (-1) ** next(RUNS)
        chosen = scores.topk(1).indices == 0
        return torch.where(chosen, self.linear(hidden_states), self.other(hidden_states))


@pytest.mark.parametrize("faulty", [False, True])
def test_router_drift_is_reported_by_the_self_check(faulty: bool) -> None:
    model = model_of(Routed, Routed)
    cast(Any, model.layers[1]).drifts = faulty
    wrap_blocks(model)
    with guard(model, on_fault="raise") as watching:
        if faulty:
            with pytest.raises(SurgeryError, match=r"layers\.1"):
                train(model)
        else:
            train(model)
            assert watching.report().ok
            assert watching.report().fingerprints > 0
