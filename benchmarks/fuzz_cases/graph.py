"""Features that do something unusual with the autograd graph inside a block."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from benchmarks.fuzz_cases.feature import FEATURES, Feature, linear, nothing, parts


def _in_place(block: Any, hidden: Any) -> Any:
    own = hidden * 1.1
    own.mul_(0.9).add_(0.01)
    own[:, 0] = own[:, 1]
    return functional.relu(own, inplace=True) - 0.1 * own


def _views(block: Any, hidden: Any) -> Any:
    view = hidden.transpose(0, 1).unflatten(-1, (2, -1)).movedim(-1, -2)
    return (view * 1.01).movedim(-2, -1).flatten(-2).transpose(0, 1)


def _detached(block: Any, hidden: Any) -> Any:
    with torch.no_grad():
        target = block.detached(hidden)
    return hidden * torch.sigmoid(target) + hidden.detach()


def _inner() -> nn.Module:
    return nn.Sequential(linear(), nn.Tanh(), nn.Dropout(0.2))


def _clipped(block: Any, hidden: Any) -> Any:
    hidden = hidden * 1
    if hidden.requires_grad:
        hidden.register_hook(lambda gradient: gradient.clamp(-1e-2, 1e-2))
    return torch.sin(hidden)


def _retained(block: Any, hidden: Any) -> Any:
    hidden = torch.sin(hidden)
    if hidden.requires_grad:
        hidden.retain_grad()
    return hidden


def _swallowed(block: Any, hidden: Any) -> Any:
    try:  # torch ends a recompute early by an exception
        return torch.exp(-torch.sin(hidden).square())
    except Exception:
        return torch.cos(hidden)


TABLE = parts(
    {
        "InPlace": (nothing, _in_place),
        "InPlaceArgument": (nothing, lambda block, hidden: hidden.add_(0.1)),
        "Views": (nothing, _views),
        "Detached": (lambda: {"detached": linear()}, _detached),
        "StraightThrough": (nothing, lambda block, hidden: hidden + (hidden.round() - hidden).detach()),
        "NestedCheckpoint": (
            lambda: {"inner": _inner()},
            lambda block, hidden: hidden + checkpoint(block.inner, hidden, use_reentrant=False),
        ),
        "NestedReentrant": (
            lambda: {"inner_reentrant": _inner()},
            lambda block, hidden: hidden + checkpoint(block.inner_reentrant, hidden, use_reentrant=True),
        ),
        "Vectorised": (
            lambda: {"mapped": nn.Parameter(torch.eye(FEATURES) * 0.5)},
            lambda block, hidden: hidden + torch.vmap(lambda rows: torch.tanh(rows @ block.mapped))(hidden),
        ),
        "ClippedInside": (nothing, _clipped),
        "RetainedInside": (nothing, _retained),
        "SwallowedErrors": (nothing, _swallowed),
        "OwnFunction": (nothing, lambda block, hidden: _Swish.apply(hidden)),  # type: ignore[no-untyped-call]
        "KeepingFunction": (nothing, lambda block, hidden: sum(_Scale.apply(hidden))),  # type: ignore[no-untyped-call]
    }
)


class _Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return values * torch.sigmoid(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (values,) = ctx.saved_tensors
        gate = torch.sigmoid(values)
        return gradients[0] * gate * (1 + values * (1 - gate))


class _Scale(torch.autograd.Function):
    """Keeps its input on the context instead of saving it, and returns a second output without gradient."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Any:
        ctx.values = values.detach().clone()
        signs = torch.sign(values)
        ctx.mark_non_differentiable(signs)
        ctx.save_for_backward(signs, values)
        return values * ctx.values.abs(), signs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        signs, _ = ctx.saved_tensors
        _, again = ctx.saved_tensors
        return gradients[0] * (ctx.values.abs() + again * signs)


class GradInside(Feature):
    """The gradient of an energy, taken inside the block."""

    def build(self, block: Any, index: int) -> None:
        block.energy = linear()

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        with torch.enable_grad():
            point = hidden if hidden.requires_grad else hidden.detach().requires_grad_()
            energy = torch.tanh(block.energy(point)).square().sum()
            (slope,) = torch.autograd.grad(energy, point, create_graph=self._variant)
        return hidden - 0.1 * slope


class GradInsideWithStatistics(GradInside):
    """The same, through a batch norm."""

    def build(self, block: Any, index: int) -> None:
        block.energy = nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(FEATURES), linear())
