"""A metered step names each allocation: who made it, who keeps it, when it is freed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

from ckpt_surgery import wrap_blocks
from ckpt_surgery.planning.allocations import Allocation, AllocationKind, StepAllocations, StepPhase
from ckpt_surgery.planning.step_meter import run_metered

pytestmark = [pytest.mark.both, pytest.mark.torch]

ROWS, WIDTH = 16, 32
BYTES = ROWS * WIDTH * 4


class Layer(nn.Module):
    """A layer that saves the product's input, and the results of two functions that save only theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        scaled = hidden * 2  # keeps nothing: the factor is a number
        return torch.sigmoid(self.linear(torch.exp(scaled)))


class Stack(nn.Module):
    """Three layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


def metered(model: nn.Module, loss: Callable[[Any], Tensor] = torch.mean) -> StepAllocations:
    return run_metered(model, ((torch.rand(ROWS, WIDTH, requires_grad=True),), {}), loss)


def kept(step: StepAllocations) -> list[Allocation]:
    return [one for one in step.allocations if one.kind is AllocationKind.KEPT]


def test_each_kept_tensor_names_what_made_it_and_what_keeps_it() -> None:
    step = metered(Stack())
    rows = [(one.place.module, one.operator, one.keeper, one.bytes, one.dtype, one.shape) for one in kept(step)]
    assert rows == [
        row
        for number in range(3)
        for row in (
            (f"layers.{number}", "aten.exp", "aten.exp", BYTES, "float32", (ROWS, WIDTH)),
            (f"layers.{number}", "aten.sigmoid", "aten.sigmoid", BYTES, "float32", (ROWS, WIDTH)),
        )
    ]
    assert step.kept_bytes == 6 * BYTES
    lines = {one.place.line.partition(":")[0] for one in kept(step)}
    assert lines == {"test_allocations.py"}


def test_temporaries_gradients_and_what_lives_how_long() -> None:
    step = metered(Stack())
    temporary = [one for one in step.allocations if one.kind is AllocationKind.TEMPORARY]
    assert {one.operator for one in temporary} >= {"aten.mul", "aten.addmm"}
    outlives = [one.operator for one in temporary if one.died > step.backward_at]
    assert outlives == ["aten.mean"]  # the loss
    assert all(one.born <= step.backward_at <= one.died for one in kept(step))
    gradients = [one for one in step.allocations if one.kind is AllocationKind.GRADIENT]
    assert sum(one.bytes for one in gradients) == 3 * (WIDTH * WIDTH + WIDTH) * 4
    assert all(one.died == step.operators for one in gradients)


def test_the_backward_names_the_module_whose_forward_it_is_of() -> None:
    step = metered(Stack())
    made = [one for one in step.allocations if one.operator == "aten.sigmoid_backward"]
    assert [one.place.module for one in made] == ["layers.2", "layers.1", "layers.0"]
    assert {one.phase for one in made} == {StepPhase.BACKWARD}


def test_what_a_recompute_makes_is_told_apart() -> None:
    model = Stack()
    wrap_blocks(model, self_check="never")
    step = metered(model)
    recomputed = [
        one for one in step.allocations if one.kind is AllocationKind.RECOMPUTED and one.operator == "aten.exp"
    ]
    assert [one.place.module for one in recomputed] == ["layers.2", "layers.1", "layers.0"]
    assert step.kept_bytes == 2 * BYTES  # the inputs of the second and third layer


def test_lines_of_packages_whose_name_begins_with_torch_are_not_its_own() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    source = "def forward(self, values):\n    return values.sigmoid()\n"
    variables: dict[str, Any] = {}
    exec(compile(source, torch.__file__.replace("torch/__init__", "torchvision/ops"), "exec"), variables)
    model[0].forward = variables["forward"].__get__(model[0])
    step = run_metered(model, ((torch.ones(2, 4, requires_grad=True),), {}), lambda result: result.sum())
    assert "ops.py:2" in {allocation.place.line for allocation in step.allocations}
