"""Small modules for `test_ready`: what they share, how their backward runs, what they keep elsewhere."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class SharedToy(nn.Module):
    """Two blocks, a head, and a projection that some of them share."""

    def __init__(self, *, in_blocks: int, in_head: bool) -> None:
        super().__init__()
        common = nn.Linear(4, 4)
        self.layers = nn.ModuleList(AttentionLike(common if n < in_blocks else nn.Linear(4, 4)) for n in range(2))
        self.head = common if in_head else nn.Linear(4, 4)
        self.second_head = self.head

    def forward(self, values: Tensor) -> Tensor:
        for layer in self.layers:
            values = layer(values)
        result: Tensor = self.second_head(self.head(values))
        return result


class AttentionLike(nn.Module):
    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, values: Tensor) -> Tensor:
        result: Tensor = self.linear(values).tanh()
        return result


class WithBackwardInside(torch.autograd.Function):
    """A function that runs a module without a graph, and again in its backward, as reversible blocks do."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, module: nn.Module) -> Any:
        ctx.module = module
        ctx.save_for_backward(values)
        with torch.no_grad():
            return module(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (values,) = ctx.saved_tensors
        values = values.detach().requires_grad_()
        with torch.enable_grad():
            torch.autograd.backward(ctx.module(values), gradients)
        return values.grad, None


class BackwardInside(nn.Module):
    """Two layers and a spare one; a function with an inner backward runs the first."""

    def __init__(self, way: Literal["reversible", "reentrant"]) -> None:
        super().__init__()
        self.way = way
        self.first, self.second, self.spare = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, values: Tensor) -> Tensor:
        inner: Any = (
            WithBackwardInside.apply(values, self.first)  # type: ignore[no-untyped-call]
            if self.way == "reversible"
            else checkpoint(self.first, values, use_reentrant=True)
        )
        result: Tensor = self.second(inner)
        return result


class KeepsItsWeight(nn.Module):
    """A layer that keeps its weight in a list too, and uses it from there."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.spare = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
        self.kept = [self.weight]

    def forward(self, values: Tensor) -> Tensor:
        return values * self.kept[0]
