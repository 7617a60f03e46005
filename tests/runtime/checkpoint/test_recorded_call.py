"""A recompute gets tensors with the attributes that were set on them; `test_wrapper_tensors` has other classes."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

from ckpt_surgery import wrap_blocks

pytestmark = pytest.mark.torch

WIDTH = 8
WAYS: list[dict[str, Any]] = [
    {"offload": offload, "self_check": check} for offload in (None, "cpu") for check in ("always", "never")
]
all_ways = pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))


class ScaledBlock(nn.Module):
    """A block that reads an optional scale from an attribute of its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        scale: float | Tensor = getattr(hidden, "scale", 1.0)
        changed: Tensor = self.second(torch.tanh(self.first(torch.tanh(hidden * scale))))
        return changed + hidden


class Scales(nn.Module):
    """A model that sets a scale on each block's argument: a number, or one computed from the tensor."""

    def __init__(self, computed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.computed = computed
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(ScaledBlock() for _ in range(3))

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = self.embed(hidden)
        for number, layer in enumerate(self.layers):
            hidden.scale = hidden.mean() if self.computed else 2.0 + number  # type: ignore[attr-defined]
            hidden = layer(hidden)
        return hidden


def gradients(model: nn.Module, rows: int) -> list[Tensor]:
    model.zero_grad()
    model(torch.linspace(-1, 1, rows * WIDTH).reshape(rows, WIDTH)).square().mean().backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@all_ways
@pytest.mark.parametrize("rows", [2, 64])  # few bytes are not offloaded
def test_attributes_of_arguments_stay(rows: int, way: dict[str, Any]) -> None:
    expected, model = gradients(Scales(), rows), Scales()
    wrap_blocks(model, **way)
    for _ in range(2):
        torch.testing.assert_close(gradients(model, rows), expected)


def test_an_attribute_with_gradient_keeps_it() -> None:
    expected, model = gradients(Scales(computed=True), 2), Scales(computed=True)
    wrap_blocks(model)
    torch.testing.assert_close(gradients(model, 2), expected)
