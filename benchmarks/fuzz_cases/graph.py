"""Features that do something unusual with the autograd graph inside a block."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from benchmarks.fuzz_cases.feature import FEATURES, Feature


class InPlace(Feature):
    """Operators in place on the block's own intermediates."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        own = hidden * 1.1
        own.mul_(0.9).add_(0.01)
        own[:, 0] = own[:, 1]
        return functional.relu(own, inplace=True) - 0.1 * own


class InPlaceArgument(Feature):
    """Writes into the hidden states that the block is given."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return hidden.add_(0.1)


class Views(Feature):
    """Views of views, with other strides."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        view = hidden.transpose(0, 1).unflatten(-1, (2, -1)).movedim(-1, -2)
        return (view * 1.01).movedim(-2, -1).flatten(-2).transpose(0, 1)


class Detached(Feature):
    """A part without gradients, and one that is detached."""

    def build(self, block: Any, index: int) -> None:
        block.detached = nn.Linear(FEATURES, FEATURES)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        with torch.no_grad():
            target = block.detached(hidden)
        return hidden * torch.sigmoid(target) + hidden.detach()


class StraightThrough(Feature):
    """Rounds, with the gradient of the identity."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return hidden + (hidden.round() - hidden).detach()


class GradInside(Feature):
    """The gradient of an energy, taken inside the block."""

    def build(self, block: Any, index: int) -> None:
        block.energy = nn.Linear(FEATURES, FEATURES)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        with torch.enable_grad():
            point = hidden if hidden.requires_grad else hidden.detach().requires_grad_()
            energy = torch.tanh(block.energy(point)).square().sum()
            (slope,) = torch.autograd.grad(energy, point, create_graph=self._variant)
        return hidden - 0.1 * slope


class GradInsideWithStatistics(GradInside):
    """The same, through a batch norm."""

    def build(self, block: Any, index: int) -> None:
        super().build(block, index)
        block.energy = nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, FEATURES))


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


class OwnFunction(Feature):
    """A function with a backward of its own; it saves its input, its output or neither."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        if self._variant:
            result: Tensor = _Swish.apply(hidden)  # type: ignore[no-untyped-call]
            return result
        result, signs = _Scale.apply(hidden)  # type: ignore[no-untyped-call]
        return result + 0.1 * signs


class NestedCheckpoint(Feature):
    """A checkpoint of torch's own inside the block."""

    def build(self, block: Any, index: int) -> None:
        block.inner = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh(), nn.Dropout(0.2))

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return hidden + checkpoint(block.inner, hidden, use_reentrant=self._variant)


class Vectorised(Feature):
    """A map over the batch with `torch.vmap`."""

    def build(self, block: Any, index: int) -> None:
        block.mapped = nn.Parameter(torch.eye(FEATURES) * 0.5)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        result: Tensor = torch.vmap(lambda rows: torch.tanh(rows @ block.mapped))(hidden)
        return hidden + result


class ClippedInside(Feature):
    """A hook on the hidden states clips their gradient."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        hidden = hidden * 1
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient.clamp(-1e-2, 1e-2))
        return torch.sin(hidden)


class RetainedInside(Feature):
    """Keeps the gradient of an intermediate, which the block holds."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        hidden = torch.sin(hidden)
        if hidden.requires_grad:
            hidden.retain_grad()
        return hidden
