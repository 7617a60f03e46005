"""A recompute finds context variables as its forward did, and leaves them as they are."""

from __future__ import annotations

import copy
from contextvars import ContextVar, copy_context

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

from ckpt_surgery import SurgeryError, wrap_blocks
from ckpt_surgery.runtime.context_variables import held_in, hold, set_since
from tests.zoo.state_toys import WIDTH, Stack

pytestmark = [pytest.mark.torch]

CALLS: ContextVar[int] = ContextVar("CALLS")
SCALE: ContextVar[float] = ContextVar("SCALE")


class Counting(nn.Module):
    """Counts its calls in a context variable, and computes with the count."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        CALLS.set(CALLS.get() + 1)
        return self.moved(hidden, CALLS.get())

    def moved(self, hidden: Tensor, scale: float) -> Tensor:
        """`hidden`, moved by an amount that depends on the scale."""
        moved: Tensor = hidden + self.project(hidden * scale).tanh()
        return moved


class TakingGradients(Counting):
    """Takes a gradient in its forward, which recomputes it there."""

    def forward(self, hidden: Tensor) -> Tensor:
        moved = super().forward(hidden)
        slope = torch.autograd.grad(moved.square().sum(), hidden, create_graph=True)[0] if self.training else 0
        return moved + slope


class Scaled(Counting):
    """Reads a context variable that others set."""

    def forward(self, hidden: Tensor) -> Tensor:
        return self.moved(hidden, SCALE.get())


def _trained(model: nn.Module) -> list[Tensor]:
    CALLS.set(0)
    for _ in range(5):  # more steps than check themselves
        model(torch.linspace(-1, 1, 4 * WIDTH).view(4, WIDTH)).sum().backward()
    assert CALLS.get() == 10
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize(("kind", "reentrant"), [(Counting, False), (Counting, True), (TakingGradients, False)])
@pytest.mark.parametrize("copied", [False, True])
def test_a_recompute_counts_from_where_its_forward_did(kind: type[Counting], reentrant: bool, copied: bool) -> None:
    torch.manual_seed(0)
    model = Stack([kind(), kind()])
    plain = copy.deepcopy(model)
    wrap_blocks(model, use_reentrant=reentrant)
    if copied:
        model = copy.deepcopy(model)
    assert all(map(torch.equal, _trained(model), _trained(plain)))


def test_a_variable_that_others_set_before_the_backward_is_told() -> None:
    model = Stack([Scaled(), Scaled()])
    wrap_blocks(model)
    SCALE.set(1.0)
    loss = model(torch.ones(4, WIDTH)).sum()
    SCALE.set(2.0)
    with pytest.raises(SurgeryError, match="recompute of Scaled"):
        loss.backward()


def test_set_since_tells_new_objects_and_leaves_out_what_held_nothing() -> None:
    first: ContextVar[object] = ContextVar("first")
    late: ContextVar[object] = ContextVar("late")
    first.set("before")
    before = copy_context()
    assert set_since(before) == set()
    first.set("after")
    late.set("after")
    assert set_since(before) == {first}
    hold(held_in(before, {first, late}))
    assert (first.get(), late.get()) == ("before", "after")
