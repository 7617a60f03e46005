"""A low-rank adapter around a linear layer, like those that fine-tuning puts into frozen models."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_RANK = 4
_SCALE = 0.05


class Adapted(nn.Module):
    """A frozen linear layer plus a product of two small matrices that train.

    `base` is an `nn.Linear`, or a layer that has its weight as (inputs, outputs), as GPT-2's `Conv1D` does. Inputs are
    (..., inputs), results (..., outputs).
    """

    def __init__(self, base: nn.Module, generator: torch.Generator) -> None:
        super().__init__()
        self.base = base
        weight: Tensor = base.weight  # type: ignore[assignment]
        first, second = weight.shape
        inputs, outputs = (second, first) if isinstance(base, nn.Linear) else (first, second)
        self.down = _small((_RANK, inputs), weight, generator)
        self.up = _small((outputs, _RANK), weight, generator)

    @property
    def weight(self) -> Tensor:
        """The weight of the frozen layer, for code that reads a linear layer's weight."""
        weight: Tensor = self.base.weight  # type: ignore[assignment]
        return weight

    @property
    def bias(self) -> Tensor | None:
        """The bias of the frozen layer."""
        bias: Tensor | None = self.base.bias  # type: ignore[assignment]
        return bias

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = self.base(hidden)
        return result + hidden.to(self.down.dtype) @ self.down.T @ self.up.T


def can_adapt(module: nn.Module) -> bool:
    """Tell whether `Adapted` can wrap a module: an `nn.Linear`, or a `Conv1D`."""
    return type(module) is nn.Linear or type(module).__name__ == "Conv1D"


def _small(shape: tuple[int, int], like: Tensor, generator: torch.Generator) -> nn.Parameter:
    values = torch.randn(shape, generator=generator) * _SCALE
    return nn.Parameter(values.to(like.device, like.dtype))
