"""Checkpointing is switched by a library's methods, a surgery, or the caller's own function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ckpt_surgery.errors import VerifyError
from ckpt_surgery.measure.results import Mode
from ckpt_surgery.measure.verify import verify
from ckpt_surgery.runtime.surgery.wrap import wrap_blocks

pytestmark = pytest.mark.torch

WIDTH = 8


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, 4 * WIDTH)
        self.outer = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = hidden + self.outer(torch.tanh(self.inner(hidden)))
        return result


class Stack(nn.Module):
    """Blocks that `function` checkpoints, if given; one block may be left out."""

    def __init__(self, *, left_out: int = -1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Layer() for _ in range(3))
        self.left_out = left_out
        self.function: Callable[..., Any] | None = None

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = self.first(hidden)
        for place, block in enumerate(self.blocks):
            function = None if place == self.left_out else self.function
            hidden = block(hidden) if function is None else function(block, hidden)
        return hidden


class Diffusers(Stack):
    def enable_gradient_checkpointing(self, gradient_checkpointing_func: Any = None) -> None:
        self.function = gradient_checkpointing_func

    def disable_gradient_checkpointing(self) -> None:
        self.function = None


class Timm(Stack):
    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.function = (lambda block, hidden: checkpoint(block, hidden, use_reentrant=False)) if enable else None


def own_switch(model: Any, mode: Mode | None) -> None:
    def function(block: nn.Module, *given: Any) -> Any:
        return checkpoint(block, *given, use_reentrant=mode == "reentrant")

    model.function = None if mode is None else function


def inputs() -> Tensor:
    return torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(1))


def statuses(model: nn.Module, given: Any, **options: Any) -> list[bool]:
    model.train()
    return [mode.ok for mode in verify(model, given, **options).modes]


@pytest.mark.parametrize(
    "given", [inputs(), (inputs(),), [inputs()], {"hidden": inputs()}], ids=["tensor", "tuple", "list", "name"]
)
def test_inputs_are_taken_by_position_and_by_name(given: Any) -> None:
    assert statuses(Diffusers(), given, levels=["recompute", "set", "values", "cost"]) == [True, True]


def test_a_surgery_is_its_own_switch() -> None:
    model = Stack()
    surgery = wrap_blocks(model)
    assert statuses(model, inputs()) == [True, False]
    assert statuses(model, inputs(), modes="non_reentrant") == [True]
    before = model(inputs())
    surgery.undo()
    assert torch.equal(before, model(inputs()))


def test_a_switch_of_the_callers_is_used() -> None:
    assert statuses(Stack(), inputs(), switch=own_switch) == [True, True]
    (fault, *_) = verify(Stack(left_out=1), inputs(), switch=own_switch, levels=["recompute"]).faults
    assert fault[1].subjects == ("blocks.1",)


def test_timm_has_one_mode() -> None:
    assert statuses(Timm(), inputs()) == [True, False]
    assert statuses(Timm(), inputs(), modes=["non_reentrant"]) == [True]
    assert statuses(Timm(left_out=0), inputs(), modes=["non_reentrant"]) == [False]


def test_without_any_switch_the_error_says_what_to_do() -> None:
    with pytest.raises(VerifyError, match=r"Stack has no method .*: call wrap_blocks on it first, or give a function"):
        verify(Stack(), inputs())
