"""The guard's causes of wrong gradients; similar healthy trainings raise no alarm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from ckpt_surgery import guard
from ckpt_surgery.guarding.faults import CoverageCause, GuardFault, GuardFaultKind
from ckpt_surgery.guarding.proof import ProofStatus
from ckpt_surgery.guarding.report import GuardReport
from ckpt_surgery.torch_names import current_graph_task_id
from tests.guarding.test_guard import train
from tests.measure.toys import WIDTH, PlainLayer, SureLayer, values
from tests.zoo.ready_toys import WithBackwardInside

pytestmark = [pytest.mark.both, pytest.mark.torch]


class ByHand(nn.Module):
    """A model that checkpoints its blocks itself, with the given function."""

    def __init__(self, *blocks: nn.Module, run: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(blocks)
        self.run = run or partial(checkpoint, use_reentrant=False)

    def forward(self, values: Tensor) -> Any:
        hidden = self.first(values)
        for layer in self.layers:
            hidden = self.run(layer, hidden)
        return hidden


def watched(model: nn.Module, dtype: torch.dtype = torch.float64) -> GuardReport:
    with guard(model.to(dtype), on_fault="collect", patience=3) as watching:
        train(model)
        return watching.report()


def the_fault(report: GuardReport, kind: GuardFaultKind) -> GuardFault:
    return next(fault for fault in report.faults if fault.kind is kind)


class Aside:
    """State that blocks share beside their results."""

    left: Any = None


class Leaving(PlainLayer):
    def forward(self, hidden_states: Tensor) -> Tensor:
        Aside.left = self.linear(hidden_states)
        return torch.tanh(Aside.left)


class Taking(PlainLayer):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return torch.tanh(self.linear(hidden_states) * Aside.left)


def test_gradients_that_reach_a_block_by_a_side_channel_are_no_fault() -> None:
    report = watched(ByHand(Leaving(), Taking()))
    assert report.ok
    assert report.blocks[0].proof.status is ProofStatus.HANDS_ON


@torch.library.custom_op("ckpt_surgery_tests::drift", mutates_args=())
def drift(scores: Tensor) -> Tensor:
    """Return other scores in each call, like a nondeterministic kernel."""
    DRIFTS[0] += 1
    return scores * (1 + DRIFTS[0] % 7)


DRIFTS = [0]
drift.register_autograd(lambda _, gradient: gradient)


class Drifting(PlainLayer):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return torch.tanh(torch.ops.ckpt_surgery_tests.drift(self.linear(hidden_states)))


class Shifting(PlainLayer):
    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden = torch.tanh(self.linear(hidden_states))
        drifted: Tensor = torch.ops.ckpt_surgery_tests.drift(hidden.detach())
        return hidden + drifted


class Routed(Shifting):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Identity()


@pytest.mark.parametrize("block", [Shifting, Routed])
def test_a_router_is_named_where_a_recompute_gives_something_else(block: type[PlainLayer]) -> None:
    fault = the_fault(watched(ByHand(block(), block())), GuardFaultKind.OTHER_RECOMPUTE)
    assert fault.cause is (CoverageCause.CHOOSES_EXPERTS if block is Routed else CoverageCause.UNKNOWN)


def keeping(*_: Any, **__: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE


@pytest.mark.parametrize("kept", [True, False])
def test_what_a_policy_keeps_need_not_be_the_same_in_each_run(kept: bool) -> None:
    run: Callable[..., Any] = partial(checkpoint, use_reentrant=False)
    if kept:
        run = partial(run, context_fn=partial(create_selective_checkpoint_contexts, keeping))
    assert watched(ByHand(Drifting(), Drifting(), run=run)).ok is kept


class PaddingDrifts(PlainLayer):
    """A layer that returns something else each time, in one row."""

    runs = 0

    def forward(self, hidden_states: Tensor) -> Tensor:
        PaddingDrifts.runs += 1
        row = torch.arange(len(hidden_states))[:, None] == 0
        return torch.where(row, float(PaddingDrifts.runs), torch.tanh(self.linear(hidden_states)))


class Unpadded(ByHand):
    """A model whose loss leaves out the first or last row."""

    left_out = 0

    def forward(self, values: Tensor) -> Any:
        hidden = super().forward(values)
        return hidden[[row for row in range(len(hidden)) if row != self.left_out]]


@pytest.mark.parametrize("left_out", [0, 1])
def test_only_results_with_a_gradient_have_to_be_those_of_the_forward(left_out: int) -> None:
    model = Unpadded(PaddingDrifts())
    model.left_out = left_out
    assert watched(model).ok is (left_out == 0)


class Phased(PlainLayer):
    """A layer whose phase a hook on its gradient sets; the `faulty` one sets it itself in each call."""

    phase = 0
    faulty = False

    def forward(self, hidden_states: Tensor) -> Tensor:
        self.phase += self.faulty
        output = torch.sin(torch.exp(self.linear(hidden_states)))
        if not self.faulty and current_graph_task_id() == -1:
            self.phase = 1
            output.register_hook(self.begin_backward)  # type: ignore[no-untyped-call]
        return output

    def begin_backward(self, _: Tensor) -> None:
        self.phase = 2


@pytest.mark.parametrize("faulty", [False, True])
def test_what_a_hook_of_gradients_writes_is_not_written_by_the_recompute(faulty: bool) -> None:
    model = ByHand(Phased(), Phased())
    for layer in model.layers:
        cast(Any, layer).faulty = faulty
    report = watched(model)
    assert report.ok is not faulty
    assert not faulty or the_fault(report, GuardFaultKind.WRITTEN_TWICE).subjects == ("layers.0", "phase")


class Normed(PlainLayer):
    """A layer that counts its batches and leaves its statistics alone."""

    momentum: float | None = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH, momentum=self.momentum)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(self.norm(hidden_states))


class Averaged(Normed):
    """A layer that keeps the mean over all batches, which needs their number."""

    momentum = None


@pytest.mark.parametrize("block", [Normed, Averaged])
def test_a_count_of_batches_from_which_nothing_is_computed_is_no_fault(block: type[Normed]) -> None:
    assert watched(ByHand(block(), block())).ok is (block is Normed)


class Recompute(WithBackwardInside):
    """A checkpoint as scripts write it, without autocast; `times` is how often it adds each gradient."""

    times = 1

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        hidden = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            output = ctx.module(hidden)
        for _ in range(Recompute.times):
            torch.autograd.backward(output, gradients, retain_graph=True)
        return hidden.grad, None


def recompute(layer: nn.Module, hidden: Tensor) -> Any:
    return Recompute.apply(hidden, layer)  # type: ignore[no-untyped-call]


class Float(PlainLayer):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states.float()).float()


class Cast(ByHand):
    def forward(self, values: Tensor) -> Any:
        hidden = self.first(values.float())
        with torch.autocast("cpu", torch.bfloat16):
            for layer in self.layers:
                hidden = self.run(layer, hidden)
        return hidden


def test_a_recompute_under_another_autocast_is_reported() -> None:
    report = watched(Cast(Float(), Float(), run=recompute), torch.float32)
    assert {fault.cause for fault in report.faults} == {CoverageCause.RECAST}


def test_gradients_that_are_a_multiple_of_the_right_ones_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recompute, "times", 2)
    report = watched(ByHand(PlainLayer(), PlainLayer(), run=recompute))
    assert "2 times as large" in str(the_fault(report, GuardFaultKind.WRONG_GRADIENTS))


class Offloading(torch.autograd.graph.saved_tensors_hooks):
    def __init__(self, shift: float) -> None:
        super().__init__(lambda tensor: tensor + 0, lambda tensor: tensor + shift)


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_saved_tensor_hooks_of_the_script_are_named_for_wrong_gradients(shift: float) -> None:
    def run(layer: Callable[..., Any], hidden: Tensor) -> Any:
        with Offloading(shift):
            return layer(hidden)

    report = watched(ByHand(PlainLayer(), PlainLayer(), run=run))
    assert {fault.cause for fault in report.faults} == ({CoverageCause.THROUGH_HOOKS} if shift else set())


class Boxed(PlainLayer):
    def forward(self, box: Any) -> Tensor:
        return super().forward(box[0])


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradients_inside_a_list_are_reported_in_reentrant_mode(reentrant: bool) -> None:
    def run(layer: Callable[..., Any], hidden: Tensor) -> Any:
        return checkpoint(layer, [hidden], use_reentrant=reentrant).requires_grad_()

    report = watched(ByHand(Boxed(), run=run))
    assert report.ok is not reentrant
    if reentrant:
        fault = the_fault(report, GuardFaultKind.CUT_OFF)
        assert fault.cause is CoverageCause.IN_CONTAINER
        assert fault.rule == "CKPT007"


class Sharing(ByHand):
    """A model that passes on a tensor which the first block writes."""

    def forward(self, values: Tensor) -> Any:
        hidden = self.first(values)
        shared = torch.zeros_like(hidden, requires_grad=False)
        for layer in self.layers:
            hidden = self.run(layer, hidden, shared)
        return hidden


class Writing(PlainLayer):
    def forward(self, hidden_states: Tensor, shared: Tensor) -> Tensor:  # type: ignore[override]
        shared.copy_(self.linear(hidden_states))
        return torch.tanh(shared + hidden_states)


class Reading(PlainLayer):
    def forward(self, hidden_states: Tensor, shared: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(hidden_states + shared)


def test_an_argument_written_under_reentrant_checkpointing_is_reported() -> None:
    report = watched(Sharing(Writing(), Reading(), run=partial(checkpoint, use_reentrant=True)))
    assert the_fault(report, GuardFaultKind.OVERWRITTEN).subjects == ("layers.0", "shared")
    assert watched(Sharing(Reading(), Reading(), run=partial(checkpoint, use_reentrant=True))).ok


class Hooked(ByHand):
    """A model with hooks on its blocks in the forward; the `early` one removes them before the backward."""

    early = True

    def forward(self, values: Tensor) -> Any:
        parts = [cast(Any, layer).linear for layer in self.layers]
        handles = [part.register_forward_hook(lambda part, _, output: output * part.gain) for part in parts]
        result = super().forward(values)
        for handle in handles if self.early else ():
            handle.remove()
        return result


class Gained(PlainLayer):
    def __init__(self) -> None:
        super().__init__()
        self.linear.gain = nn.Parameter(torch.ones(WIDTH))


def test_hooks_missing_in_the_recompute_are_named_for_missing_gradients() -> None:
    report = watched(Hooked(Gained(), run=partial(checkpoint, use_reentrant=True)))
    fault = the_fault(report, GuardFaultKind.UNTRAINED)
    assert fault.subjects == ("layers.0.linear.gain",)
    assert fault.cause is CoverageCause.HOOKS_GONE


class TwoStacks(ByHand):
    """A model of two stacks that checkpoints one or both."""

    def __init__(self) -> None:
        super().__init__(PlainLayer(), PlainLayer())
        self.tower = nn.ModuleList(SureLayer().requires_grad_(False) for _ in range(2))
        self.both = False

    def forward(self, values: Tensor) -> Any:
        hidden = self.first(values)
        for layer in self.tower:
            hidden = self.run(layer, hidden) if self.both else layer(hidden)
        for layer in self.layers:
            hidden = self.run(layer, hidden)
        return hidden


@pytest.mark.parametrize("both", [False, True])
def test_a_stack_that_keeps_everything_beside_one_that_does_not_is_named(both: bool) -> None:
    model = TwoStacks()
    model.both = both
    report = watched(model)
    assert report.ok
    assert report.kept_stacks == ([] if both else ["tower"])


class Unused(ByHand):
    """A model with a part that never runs and one whose result goes unused."""

    def __init__(self) -> None:
        super().__init__(PlainLayer())
        self.never, self.cut = nn.Linear(2, 2), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, values: Tensor) -> Any:
        self.cut(values)
        return super().forward(values)


@pytest.fixture
def ranks() -> Iterator[None]:
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("expected", [False, True])
def test_parameters_of_what_never_ran_are_no_fault_where_ddp_expects_them(ranks: None, expected: bool) -> None:
    model = Unused().double()
    outer = DistributedDataParallel(model, find_unused_parameters=True) if expected else model
    with guard(outer, on_fault="collect", patience=3) as watching:
        for _ in range(4):
            outer(**values()).square().mean().backward()
    fault = the_fault(watching.report(), GuardFaultKind.UNTRAINED)
    assert fault.subjects == (("cut.weight",) if expected else ("never.weight", "never.bias", "cut.weight"))
    assert "never.weight" in watching.report().without_gradient
