"""What no run of `verify` showed is skipped with its reason, never ok; all of its arguments are watched."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache

from ckpt_surgery.errors import VerifyError
from ckpt_surgery.measure.kinds import FaultKind, SkipKind
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import Mode
from ckpt_surgery.measure.verify import verify
from ckpt_surgery.testing.assertions import assert_checkpointing
from tests.measure.test_switch import WIDTH, Layer, Stack, Timm, inputs, own_switch

pytestmark = pytest.mark.torch


def skips(report: Report, mode: Mode = "non_reentrant") -> set[SkipKind]:
    (found,) = (found for found in report.modes if found.mode == mode)
    return {skip.kind for skip in found.skips if skip.levels != ("ranks",)}


def reasons(report: Report) -> set[SkipKind]:
    return {skip.kind for mode in report.modes for skip in mode.skips}


def faults(report: Report) -> set[FaultKind]:
    return {fault.kind for _, fault in report.faults}


def dead(model: nn.Module, mode: Mode | None) -> None:
    """Leave everything as it is."""


class OfAttributes(Stack):
    """The same blocks as attributes, where nobody looks for a stack."""

    def __init__(self) -> None:
        super().__init__()
        for place, block in enumerate(self.blocks):
            setattr(self, f"block{place}", block)
        del self.blocks

    def forward(self, hidden: Tensor) -> Tensor:
        for place in range(3):
            block = getattr(self, f"block{place}")
            hidden = block(hidden) if self.function is None else self.function(block, hidden)
        return hidden


def test_without_blocks_a_switch_that_saves_nothing_is_a_fault() -> None:
    report = verify(OfAttributes(), inputs(), switch=dead)
    assert report.status == "failed"
    assert {fault.kind for fault in report.modes[0].faults} == {FaultKind.NOTHING_CHECKPOINTED}
    report = verify(OfAttributes(), inputs(), switch=own_switch, modes="non_reentrant", levels=["recompute", "set"])
    assert (report.status, skips(report)) == ("ok", {SkipKind.NO_BLOCKS})


def test_blocks_that_no_backward_comes_through_show_nothing() -> None:
    model = Stack()
    model.blocks.requires_grad_(False)
    model.first.requires_grad_(False)
    model.head = nn.Linear(WIDTH, WIDTH)
    model.register_forward_hook(lambda self, _, output: self.head(output))
    report = verify(model, inputs(), switch=dead)
    assert (report.status, skips(report)) == ("skipped", {SkipKind.NO_BLOCK_REACHED})


def test_a_mode_that_did_not_run_is_skipped() -> None:
    def always(kept: Mode) -> Any:
        return lambda model, mode: own_switch(model, None if mode is None else kept)

    modes: tuple[Mode, ...] = ("non_reentrant", "reentrant")
    for kept, other in (modes, modes[::-1]):
        report = verify(Stack(), inputs(), switch=always(kept), levels=["recompute", "set"])
        assert [mode.status for mode in report.modes] == ["ok" if mode == kept else "skipped" for mode in modes]
        assert skips(report, other) == {SkipKind.OTHER_MODE}
    report = verify(OfAttributes(), inputs(), switch=always("non_reentrant"), levels=["recompute", "set"])
    assert skips(report, "reentrant") == {SkipKind.OTHER_MODE}, "also where no blocks are found"
    report = verify(Timm(), inputs(), levels=["recompute", "set"])
    assert (report.status, skips(report, "reentrant")) == ("ok", {SkipKind.NO_SUCH_MODE})


class InParts(Stack):
    """A stack that calls the parts of its blocks, and never a block."""

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = self.first(hidden)
        for block in self.blocks:
            hidden = hidden + block.outer(torch.tanh(block.inner(hidden)))  # type: ignore[operator]
        return hidden


def test_blocks_that_are_called_in_parts_are_not_recomputed() -> None:
    report = verify(InParts(), inputs(), switch=dead, levels=["recompute", "cost"], modes="non_reentrant")
    assert faults(report) == {FaultKind.NOT_RECOMPUTED}


def test_a_level_that_was_asked_for_and_not_measured_is_not_ok() -> None:
    report = verify(Stack(), inputs(), switch=own_switch, levels="ranks")
    assert (report.status, reasons(report)) == ("skipped", {SkipKind.ONE_PROCESS})
    report = verify(Stack().bfloat16(), inputs().bfloat16(), switch=own_switch, levels="precision")
    assert (report.status, reasons(report)) == ("skipped", {SkipKind.NOT_WIDE})
    with pytest.raises(AssertionError, match="was not measured"):
        assert_checkpointing(Stack(), {"hidden": inputs()}, switch=own_switch, levels="ranks")


def test_two_equal_samples_show_nothing_of_two_forwards() -> None:
    for given in (inputs()[:1], inputs()[:1].expand(2, -1, -1)):
        report = verify(Stack(), given, switch=own_switch, levels=["loop"])
        assert skips(report) == {SkipKind.SAME_SAMPLES}
        assert str(report.modes[0].skips[0]).startswith("a part of level loop was skipped: ")
    assert skips(verify(Stack(), inputs(), switch=own_switch, levels=["loop"])) == set()


# --- what is given ------------------------------------------------------------------------------------------


class Appends(Layer):
    def forward(self, hidden: Tensor, state: Any = None) -> Tensor:
        if isinstance(state, list):
            state[0] += 1
        elif isinstance(state, dict):
            state["cache"].update(hidden[None].detach(), hidden[None].detach(), 0)
        elif state is not None:
            state.kept = torch.cat([state.kept, hidden.detach()])
        return super().forward(hidden)


class Stateful(Stack):
    """A stack that passes the caller's state to its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Appends() for _ in range(3))

    def forward(self, hidden: Tensor, state: Any = None) -> Tensor:
        for block in self.blocks:
            hidden = block(hidden, state) if self.function is None else self.function(block, hidden, state)
        return hidden


def with_arguments(model: Any, mode: Mode | None) -> None:
    def function(block: nn.Module, *given: Any) -> Any:
        return checkpoint(block, *given, use_reentrant=mode == "reentrant")

    model.function = None if mode is None else function


@pytest.mark.parametrize("kind", ["tensor in a list", "cache in a dictionary", "object"])
@pytest.mark.parametrize("by_position", [True, False])
def test_whatever_is_given_is_left_as_the_forward_left_it(kind: str, by_position: bool) -> None:
    made: dict[str, Any] = {
        "tensor in a list": [torch.zeros(3)],
        "cache in a dictionary": {"cache": DynamicCache()},
        "object": SimpleNamespace(kept=torch.zeros(0, 5, WIDTH)),
    }
    given: Any = (inputs(), made[kind]) if by_position else {"hidden": inputs(), "state": made[kind]}
    report = verify(Stateful(), given, switch=with_arguments, levels=["state"], modes="non_reentrant")
    assert faults(report) == {FaultKind.WRITTEN_AGAIN}
    assert report.faults[0][1].subjects == ("input *1" if by_position else "input state",)
    assert verify(Stateful(), inputs(), switch=with_arguments, levels=["state"], modes="non_reentrant").ok


class Averages(Layer):
    """A layer that keeps a mean in a tensor that is not a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean((0, 1))
        return super().forward(hidden)


def test_a_tensor_that_a_module_keeps_is_watched() -> None:
    model = Stack()
    model.blocks = nn.ModuleList(Averages() for _ in range(3))
    report = verify(model, inputs(), switch=own_switch, levels=["state"])
    assert faults(report) == {FaultKind.WRITTEN_AGAIN}
    assert report.faults[0][1].subjects == ("blocks.0.mean", "blocks.1.mean", "blocks.2.mean")


def test_an_input_that_no_run_can_get_a_copy_of_is_refused() -> None:
    given = {"hidden": inputs(), "state": threading.Lock()}
    with pytest.raises(VerifyError, match=r"^the input state of Stateful cannot be copied, .*cannot pickle"):
        verify(Stateful(), given, switch=with_arguments, levels=["run"])


def test_a_switch_that_cannot_switch_off_is_refused() -> None:
    def switch(model: nn.Module, mode: Mode | None) -> None:
        raise NotImplementedError("there is no way back")

    with pytest.raises(VerifyError, match=r"^Stack cannot be run with its checkpointing off: NotImpl.*no way back$"):
        verify(Stack(), inputs(), switch=switch)


class Rows(Layer):
    """A layer that swaps two rows of its input, invisible to plain sums, or writes the same there again."""

    def forward(self, hidden: Tensor, state: Any = None) -> Tensor:
        if isinstance(state, list):
            state[0][:] = state[0].flip(0)
        elif state is not None:
            state["made"] = torch.tanh(hidden.detach())
        return super().forward(hidden)


@pytest.mark.parametrize(("state", "written"), [([torch.arange(4.0)], True), ({"made": torch.zeros(1)}, False)])
def test_a_write_is_seen_by_what_is_there_then(state: Any, written: bool) -> None:
    model = Stateful()
    model.blocks = nn.ModuleList([Rows()])
    given = {"hidden": inputs(), "state": state}
    report = verify(model, given, switch=with_arguments, levels=["state"], modes="non_reentrant")
    assert faults(report) == ({FaultKind.WRITTEN_AGAIN} if written else set())


class Ignores(Stack):
    """A stack that takes a state and does nothing with it."""

    def forward(self, hidden: Tensor, state: Any = None) -> Tensor:
        return super().forward(hidden)


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(lambda: torch.ones(3).to_sparse(), id="sparse"),
        pytest.param(lambda: torch.ones(3).to(torch.float8_e4m3fn), id="float8"),
    ],
)
def test_a_tensor_of_any_kind_may_be_given(odd: Any) -> None:
    given = {"hidden": inputs(), "state": (odd(),)}
    assert verify(Ignores(), given, switch=own_switch, levels=["state"], modes="non_reentrant").ok
