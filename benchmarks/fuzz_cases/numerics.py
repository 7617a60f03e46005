"""Features that change the dtype, the layout or the kernels of what a block computes."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.fuzz_cases.feature import FEATURES, Feature, linear, nothing, parts


def _autocast(block: Any, hidden: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        low = torch.tanh(block.cast(hidden))
    return hidden + low.to(hidden.dtype)


def _complex(block: Any, hidden: Any) -> Any:
    pairs = torch.view_as_complex(hidden.float().unflatten(-1, (-1, 2)).contiguous())
    turned = pairs * torch.polar(torch.ones_like(block.angles), block.angles).to(pairs.dtype)
    return torch.view_as_real(turned).flatten(-2).to(hidden.dtype)


TABLE = parts(
    {
        "AutocastInside": (lambda: {"cast": linear()}, _autocast),
        "LowPrecision": (
            lambda: {"low": linear().to(torch.bfloat16)},
            lambda block, hidden: hidden + torch.tanh(block.low(hidden.to(torch.bfloat16))).to(hidden.dtype),
        ),
        "Complex": (lambda: {"angles": nn.Parameter(torch.linspace(0, 1, FEATURES // 2))}, _complex),
        "DefaultDtype": (nothing, lambda block, hidden: hidden + torch.ones(hidden.shape[-1]).cumsum(0) / 10),
    }
)


class AutocastAround(Feature):
    """The forward of the model, and not its backward, in bfloat16."""

    def around(self) -> AbstractContextManager[Any]:
        return torch.autocast("cpu", torch.bfloat16)


class KernelAround(Feature):
    """The forward of the model, and not its backward, with one kernel of attention."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.kernel = rng.choice([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])

    def around(self) -> AbstractContextManager[Any]:
        manager: AbstractContextManager[Any] = sdpa_kernel([self.kernel])
        return manager

    def build(self, block: Any, index: int) -> None:
        block.heads = nn.Linear(FEATURES, 3 * FEATURES)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        parts = block.heads(hidden).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts)
        return hidden + mixed.transpose(1, 2).flatten(2)


class SavedTensorHooks(Feature):
    """The forward of the model, and not its backward, copies what it saves."""

    def around(self) -> AbstractContextManager[Any]:
        return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor)
