"""Features that are ordinary layers of a block."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from benchmarks.fuzz_cases.feature import FEATURES, Feature


class SelfAttention(Feature):
    """Attention over positions with fused projections."""

    def build(self, block: Any, index: int) -> None:
        block.project = nn.Linear(FEATURES, 3 * FEATURES)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        query, key, values = block.project(hidden).chunk(3, dim=-1)
        return hidden + functional.scaled_dot_product_attention(query, key, values, is_causal=self._variant)


class LayerNorm(Feature):
    """A layer norm."""

    def build(self, block: Any, index: int) -> None:
        block.norm = nn.LayerNorm(FEATURES)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        normed: Tensor = block.norm(hidden)
        return normed


class BatchNorm(Feature):
    """Running statistics, with and without momentum."""

    def build(self, block: Any, index: int) -> None:
        block.batch_norm = nn.BatchNorm1d(FEATURES, momentum=0.1 if self._variant else None)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        normed: Tensor = block.batch_norm(hidden.transpose(1, 2)).transpose(1, 2)
        return normed


class InstanceNorm(BatchNorm):
    """An instance norm that keeps statistics."""

    def build(self, block: Any, index: int) -> None:
        block.batch_norm = nn.InstanceNorm1d(FEATURES, affine=True, track_running_stats=True)


class Dropout(Feature):
    """Dropout, as a module or as a function."""

    def build(self, block: Any, index: int) -> None:
        block.dropout = nn.Dropout(0.3) if self._variant else None

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        if block.dropout is None:
            return functional.dropout(hidden, 0.3, block.training)
        dropped: Tensor = block.dropout(hidden)
        return dropped


class Gated(Feature):
    """A gated MLP."""

    def build(self, block: Any, index: int) -> None:
        block.gate, block.gated = nn.Linear(FEATURES, 16), nn.Linear(FEATURES, 16)
        block.back = nn.Linear(16, FEATURES)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return hidden + block.back(functional.silu(block.gate(hidden)) * block.gated(hidden))


class Convolution(Feature):
    """A causal convolution over positions."""

    def build(self, block: Any, index: int) -> None:
        block.convolution = nn.Conv1d(FEATURES, FEATURES, 3, padding=2, groups=FEATURES)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        mixed = block.convolution(hidden.transpose(1, 2))[..., : hidden.shape[1]]
        return hidden + torch.sin(mixed.transpose(1, 2))


class Recurrence(Feature):
    """A GRU over positions."""

    def build(self, block: Any, index: int) -> None:
        block.recurrence = nn.GRU(FEATURES, FEATURES, batch_first=True)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return hidden + block.recurrence(hidden)[0]


class SpectralNorm(Feature):
    """A parametrisation with a power iteration in its buffers."""

    def build(self, block: Any, index: int) -> None:
        block.spectral = spectral_norm(nn.Linear(FEATURES, FEATURES))

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return hidden + torch.tanh(block.spectral(hidden))


class WeightNorm(Feature):
    """A parametrisation without buffers."""

    def build(self, block: Any, index: int) -> None:
        block.weight_normed = weight_norm(nn.Linear(FEATURES, FEATURES))

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return hidden + torch.tanh(block.weight_normed(hidden))


class PositionTable(Feature):
    """A table of learned positions, read through indices that are a buffer."""

    def build(self, block: Any, index: int) -> None:
        block.table = nn.Embedding(16, FEATURES)
        block.register_buffer("places", torch.arange(16), persistent=False)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return hidden + block.table(block.places[: hidden.shape[1]])


class Branch(Feature):
    """Goes one way or the other by a value of the hidden states."""

    def build(self, block: Any, index: int) -> None:
        block.left, block.right = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        layer = block.left if float(hidden.detach().sum()) > 0 else block.right
        return hidden + torch.tanh(layer(hidden))


class Unused(Feature):
    """A layer that only some calls use, so that its parameters have no gradient."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.used = rng.random() < 0.3

    def build(self, block: Any, index: int) -> None:
        block.sometimes = nn.Linear(FEATURES, FEATURES)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return hidden + torch.tanh(block.sometimes(hidden)) if self.used else hidden
