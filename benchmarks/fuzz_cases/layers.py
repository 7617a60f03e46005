"""Features that are ordinary layers of a block."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from benchmarks.fuzz_cases.feature import FEATURES, Feature, linear, nothing, parts


def _attention(block: Any, hidden: Any) -> Any:
    query, key, values = block.project(hidden).chunk(3, dim=-1)
    return hidden + functional.scaled_dot_product_attention(query, key, values, is_causal=True)


def _branch(block: Any, hidden: Any) -> Any:
    layer = block.left if float(hidden.detach().sum()) > 0 else block.right
    return hidden + torch.tanh(layer(hidden))


TABLE = parts(
    {
        "SelfAttention": (lambda: {"project": nn.Linear(FEATURES, 3 * FEATURES)}, _attention),
        "LayerNorm": (lambda: {"norm": nn.LayerNorm(FEATURES)}, lambda block, hidden: block.norm(hidden)),
        "BatchNorm": (
            lambda: {"batch_norm": nn.BatchNorm1d(FEATURES)},
            lambda block, hidden: block.batch_norm(hidden.transpose(1, 2)).transpose(1, 2),
        ),
        "Dropout": (lambda: {"dropout": nn.Dropout(0.3)}, lambda block, hidden: block.dropout(hidden)),
        "DropoutFunction": (nothing, lambda block, hidden: functional.dropout(hidden, 0.3, block.training)),
        "SpectralNorm": (
            lambda: {"spectral": spectral_norm(linear())},
            lambda block, hidden: hidden + torch.tanh(block.spectral(hidden)),
        ),
        "WeightNorm": (
            lambda: {"weight_normed": weight_norm(linear())},
            lambda block, hidden: hidden + torch.tanh(block.weight_normed(hidden)),
        ),
        "Branch": (lambda: {"left": linear(), "right": linear()}, _branch),
    }
)


class Unused(Feature):
    """A layer that only some calls use, so that its parameters have no gradient."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.used = rng.random() < 0.3

    def build(self, block: Any, index: int) -> None:
        block.sometimes = linear()

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return hidden + torch.tanh(block.sometimes(hidden)) if self.used else hidden
