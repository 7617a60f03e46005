"""Tensors around others, such as nested ones: blocks are checkpointed, checked and measured as with plain ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

from ckpt_surgery import SurgeryError, explain, verify, wrap_blocks

pytestmark = [pytest.mark.both, pytest.mark.torch]

WIDTH, ROWS = 16, 12
LENGTHS = (5, 7)


def nested(rows: Tensor) -> Tensor:
    offsets = torch.tensor([0, *LENGTHS]).cumsum(0)
    return torch.nested.nested_tensor_from_jagged(rows.reshape(-1, WIDTH), offsets=offsets)


def doubled(rows: Tensor) -> Tensor:
    return TwoTensor(rows.clone(), 2 * rows)  # type: ignore[no-untyped-call]


def total(tensor: Tensor) -> Tensor:
    return tensor.values().sum() if tensor.is_nested else tensor.sum()


class Layer(nn.Module):
    """A residual block; `drift` makes each call compute something else, which no seed repeats."""

    def __init__(self, drift: float) -> None:
        super().__init__()
        self.norm, self.linear, self.dropout = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2)
        self.drift = drift

    def forward(self, hidden: Tensor) -> Tensor:
        scaled = self.norm(hidden) * (1 + self.drift * random.SystemRandom().random())
        result: Tensor = hidden + self.dropout(torch.relu(self.linear(scaled)))
        return result


class Stack(nn.Module):
    """A stack that packs its input rows into one tensor of the kind."""

    def __init__(self, made: Callable[[Tensor], Tensor], drift: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.made = made
        self.layers = nn.ModuleList(Layer(drift) for _ in range(3))

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.made(rows)
        for layer in self.layers:
            hidden = layer(hidden)
        return total(hidden)


def rows() -> Tensor:
    return torch.rand(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))


def gradients(model: nn.Module) -> list[Tensor]:
    torch.manual_seed(2)
    model.zero_grad()
    model(rows()).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


kinds = pytest.mark.parametrize("made", [nested, doubled])


@kinds
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"self_check": "always"},
        {"save": ("norm", "matmul:2")},
        {"save": "random", "preserve_rng_state": False},
        {"offload": "disk"},
        {"save": "matmul", "offload": "cpu", "save_offload": True},
    ],
    ids=str,
)
def test_gradients_are_those_without_checkpointing(made: Any, options: dict[str, Any]) -> None:
    plain = gradients(Stack(made))
    wrapped = Stack(made)
    if made is doubled and "norm" in options.get("save", ""):
        options = {**options, "save": "matmul:2"}  # such a tensor takes layer norms apart
    wrap_blocks(wrapped, **options)
    for _ in range(2):
        assert all(map(torch.equal, gradients(wrapped), plain))


@kinds
def test_a_recompute_that_differs_is_reported(made: Any) -> None:
    model = Stack(made, drift=0.1)
    wrap_blocks(model, self_check="always")
    with pytest.raises(SurgeryError, match="gave a different result"):
        gradients(model)


@kinds
def test_verify_measures_them(made: Any) -> None:
    model = Stack(made)
    wrap_blocks(model)
    report = verify(model, rows())
    assert report.ok, str(report)
    cost = report.modes[0].cost
    assert cost is not None
    assert cost.saved_share is not None
    assert cost.saved_share > 0.9
    assert cost.backward_flops == cost.best_backward_flops > cost.reference_backward_flops > 0


@kinds
def test_explain_counts_what_is_inside(made: Any) -> None:
    model = Stack(made)
    inside = 2 if made is doubled else 1
    result = ROWS * WIDTH * 4
    whole = explain(model, rows())
    assert [each.bytes for each in whole.holders if each.operator == "aten.relu"] == [result * inside * 3]
    wrap_blocks(model)
    assert result * inside * 3 <= explain(model, rows()).kept_bytes < whole.kept_bytes / 2


def test_a_parameter_has_the_bytes_that_are_inside() -> None:
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    assert explain(model, rows(), loss=Tensor.sum).parameter_bytes == WIDTH * WIDTH * 4
    model.weight = nn.Parameter(doubled(model.weight.detach()))
    told = explain(model, rows(), loss=Tensor.sum, optimizer="adamw")
    assert told.parameter_bytes == 2 * WIDTH * WIDTH * 4
    assert told.gradient_bytes == 2 * WIDTH * WIDTH * 4
