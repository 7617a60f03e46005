"""Features that do something unusual with the autograd graph inside a block."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from benchmarks.fuzz_cases.feature import FEATURES, linear, nothing, parts


def _in_place(block: Any, hidden: Any) -> Any:
    own = hidden * 1.1
    own.mul_(0.9).add_(0.01)
    own[:, 0] = own[:, 1]
    return functional.relu(own, inplace=True) - 0.1 * own


def _detached(block: Any, hidden: Any) -> Any:
    with torch.no_grad():
        target = block.detached(hidden)
    return hidden * torch.sigmoid(target) + hidden.detach()


def _slope(layer: nn.Module, hidden: Any, *, create_graph: bool) -> Any:
    with torch.enable_grad():
        point = hidden if hidden.requires_grad else hidden.detach().requires_grad_()
        (slope,) = torch.autograd.grad(torch.tanh(layer(point)).square().sum(), point, create_graph=create_graph)
    return slope


def _gradient(block: Any, hidden: Any) -> Any:
    return hidden - 0.1 * _slope(block.energy, hidden, create_graph=False)


def _inner() -> nn.Module:
    return nn.Sequential(linear(), nn.Tanh(), nn.Dropout(0.2))


def _clipped(block: Any, hidden: Any) -> Any:
    hidden = hidden * 1
    if hidden.requires_grad:
        hidden.register_hook(lambda gradient: gradient.clamp(-1e-2, 1e-2))
    return torch.sin(hidden)


def _swallowed(block: Any, hidden: Any) -> Any:
    try:  # torch ends a recompute early by an exception
        return torch.exp(-torch.sin(hidden).square())
    except Exception:
        return torch.cos(hidden)


TABLE = parts(
    {
        "InPlace": (nothing, _in_place),
        "InPlaceArgument": (nothing, lambda block, hidden: hidden.add_(0.1)),
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
        "SwallowedErrors": (nothing, _swallowed),
        "GradInside": (lambda: {"energy": linear()}, _gradient),
        "GradInsideWithStatistics": (
            lambda: {"energy_norm": nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(FEATURES), linear())},
            lambda block, hidden: hidden - 0.1 * _slope(block.energy_norm, hidden, create_graph=True),
        ),
        "KeepingFunction": (nothing, lambda block, hidden: sum(_Scale.apply(hidden))),  # type: ignore[no-untyped-call]
    }
)


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
