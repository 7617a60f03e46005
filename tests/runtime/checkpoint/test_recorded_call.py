"""A recompute gets tensors of their original class, with the attributes set on them."""

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


class Louder(Tensor):
    """A tensor with another tanh."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        return result * 1.5 if func is torch.tanh else result


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


class LouderInside(Scales):
    """A model that gives its blocks tensors of another class."""

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = self.embed(hidden).as_subclass(Louder)
        for layer in self.layers:
            hidden = layer(hidden)
            assert type(hidden) is Louder
        return hidden.as_subclass(Tensor)


def gradients(model: nn.Module, rows: int) -> list[Tensor]:
    model.zero_grad()
    model(torch.linspace(-1, 1, rows * WIDTH).reshape(rows, WIDTH)).square().mean().backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@all_ways
@pytest.mark.parametrize("whole", [Scales, LouderInside])
@pytest.mark.parametrize("rows", [2, 64])  # few bytes are not offloaded
def test_class_and_attributes_of_arguments_stay(whole: type[Scales], rows: int, way: dict[str, Any]) -> None:
    expected, model = gradients(whole(), rows), whole()
    wrap_blocks(model, **way)
    for _ in range(2):
        torch.testing.assert_close(gradients(model, rows), expected)


def test_an_attribute_with_gradient_keeps_it() -> None:
    expected, model = gradients(Scales(computed=True), 2), Scales(computed=True)
    wrap_blocks(model)
    torch.testing.assert_close(gradients(model, 2), expected)
