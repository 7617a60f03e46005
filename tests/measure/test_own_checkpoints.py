"""A model that checkpoints itself is no reference: verify names the place and is never ok."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import checkpoint

from ckpt_surgery.measure.kinds import CauseKind, FaultKind, SkipKind
from ckpt_surgery.measure.verify import verify
from ckpt_surgery.runtime.surgery.wrap import wrap_blocks
from tests.measure.test_switch import WIDTH, Layer, Stack, inputs, own_switch

pytestmark = pytest.mark.torch


class Recomputing(torch.autograd.Function):
    """A third party's checkpoint function."""

    @staticmethod
    def forward(ctx: Any, block: nn.Module, hidden: Tensor) -> Any:
        ctx.block, ctx.hidden = block, hidden.detach()
        with torch.no_grad():
            return block(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        hidden = ctx.hidden.requires_grad_()
        with torch.enable_grad():
            torch.autograd.backward(ctx.block(hidden), gradients[0])
        return None, hidden.grad


class Called(Stack):
    def __init__(self) -> None:
        super().__init__()
        self.last: nn.Module = Layer()

    def forward(self, hidden: Tensor) -> Tensor:
        return self.at_the_end(super().forward(hidden))

    def at_the_end(self, hidden: Tensor) -> Tensor:
        result: Tensor = checkpoint(self.last, hidden, use_reentrant=False)
        return result


class OfItsOwn(Called):
    def at_the_end(self, hidden: Tensor) -> Tensor:
        result: Tensor = Recomputing.apply(self.last, hidden)  # type: ignore[no-untyped-call]
        return result


class Wrapped(Called):
    def __init__(self) -> None:
        super().__init__()
        self.last = checkpoint_wrapper(self.last)

    def at_the_end(self, hidden: Tensor) -> Tensor:
        result: Tensor = self.last(hidden)
        return result


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        (Called, f"at {__file__}:"),
        (OfItsOwn, "in last, which runs again in the backward"),
        (Wrapped, f"at {__file__}:"),
    ],
    ids=["a call", "a function of its own", "a wrapper"],
)
def test_a_model_that_checkpoints_a_part_itself_is_skipped_with_the_place(kind: type[Called], where: str) -> None:
    report = verify(kind(), inputs(), switch=own_switch)
    assert report.status == "skipped"
    for mode in report.modes:
        (skip,) = mode.skips
        assert (skip.kind, set(mode.outcomes.values())) == (SkipKind.OWN_CHECKPOINT, {"skipped"})
        assert str(skip.details["own"]).startswith(where)


def test_a_loss_function_that_checkpoints_is_not_the_models() -> None:
    def loss(output: Tensor) -> Tensor:
        result: Tensor = checkpoint(lambda hidden: hidden.tanh().pow(2).sum(), output, use_reentrant=False)
        return result

    assert verify(Stack(), inputs(), switch=own_switch, loss=loss, levels=["set", "values"]).ok


class FrozenFirst(nn.Module):
    """A model whose blocks get input without gradient, which cuts their parameters off in its own checkpoint call."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.blocks = nn.ModuleList(Layer() for _ in range(3))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = self.first(hidden)
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=True)
        result: Tensor = self.head(hidden)
        return result


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_gradients_that_the_models_own_call_loses_fail_with_its_line() -> None:
    model = FrozenFirst()
    wrap_blocks(model)
    (mode, other) = verify(model, inputs()).modes
    (fault,) = mode.faults
    assert (fault.kind, fault.level, mode.outcome("run"), other.status) == (
        FaultKind.LOST_IN_REFERENCE,
        "set",
        "skipped",
        "skipped",
    )
    assert set(fault.subjects) == {name for name, _ in model.named_parameters() if name.startswith("blocks.")}
    assert fault.explanation is not None
    assert fault.explanation.kind is CauseKind.NO_INPUT_GRADIENT
    assert str(fault.details["own"]).startswith(f"at {__file__}:")
