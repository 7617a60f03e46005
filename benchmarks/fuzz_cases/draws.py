"""Features that draw random numbers from the global generators of torch, Python and NumPy."""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.fuzz_cases.feature import Feature, nothing, parts, scaled


def _numpy_draw(block: Any, hidden: Any) -> Any:
    return scaled(hidden, torch.from_numpy(numpy.random.rand(hidden.shape[-1])).to(hidden.dtype))


def _reseeding(block: Any, hidden: Any) -> Any:
    torch.default_generator.manual_seed(int(hidden.shape[-1]))
    return hidden * (1 + 0.3 * torch.rand_like(hidden))


TABLE = parts(
    {
        "TorchNoise": (nothing, lambda block, hidden: hidden * (1 + 0.3 * torch.rand_like(hidden))),
        "Gumbel": (nothing, lambda block, hidden: hidden + functional.gumbel_softmax(hidden, hard=True)),
        "TorchDraw": (nothing, lambda block, hidden: torch.tanh(hidden) if torch.rand(()).item() < 0.5 else hidden),
        "PythonDraw": (nothing, lambda block, hidden: scaled(hidden, random.gauss(0, 1))),
        "PythonLayerDrop": (nothing, lambda block, hidden: torch.tanh(hidden) if random.random() < 0.5 else hidden),
        "NumpyDraw": (nothing, _numpy_draw),
        "Reseeding": (nothing, _reseeding),
    }
)


class DrawInHook(Feature):
    """A forward hook on a part of the block draws noise, from torch's generator or from NumPy's."""

    def attach(self, model: Any) -> None:
        for layer in dict.fromkeys(model.layers):
            layer.up.register_forward_hook(self._noise)

    def _noise(self, module: Any, args: Any, output: Tensor) -> Tensor:
        drawn = torch.rand if self._variant else lambda size: torch.from_numpy(numpy.random.rand(size))
        return output * (1 + 0.3 * drawn(output.shape[-1]).to(output.dtype))
