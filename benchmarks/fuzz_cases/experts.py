"""Features that send tokens to experts."""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from benchmarks.fuzz_cases.feature import FEATURES, Feature

EXPERTS = 4


class Experts(Feature):
    """A router that sends each token to its best two experts."""

    def build(self, block: Any, index: int) -> None:
        block.router = nn.Linear(FEATURES, EXPERTS)
        block.experts = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(EXPERTS))

    def logits(self, block: Any, tokens: Tensor) -> Tensor:
        """What the router gives each expert, of shape (tokens, experts)."""
        result: Tensor = block.router(tokens)
        return result

    def routed(self, block: Any, logits: Tensor, chosen: Tensor) -> None:
        """Called with the logits and the chosen experts, both of shape (tokens, _)."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        tokens = hidden.reshape(-1, hidden.shape[-1])
        logits = self.logits(block, tokens)
        weights, chosen = torch.topk(logits.softmax(-1), 2)
        self.routed(block, logits, chosen)
        result = torch.zeros_like(tokens)
        for number, expert in enumerate(block.experts):
            token, place = torch.where(chosen == number)
            if len(token):
                change = torch.tanh(expert(tokens[token])) * weights[token, place, None]
                result = result.index_add(0, token, change.to(result.dtype))
        return hidden + result.view_as(hidden)


class DriftingExperts(Experts):
    """The router jitters with NumPy's generator: the recompute may choose other experts."""

    def logits(self, block: Any, tokens: Tensor) -> Tensor:
        noise = torch.from_numpy(numpy.random.rand(len(tokens), EXPERTS)).to(tokens.dtype)
        return super().logits(block, tokens) + noise


class CountingExperts(Experts):
    """The load of each expert is counted in a list outside the block."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.load: list[list[int]] = []

    def routed(self, block: Any, logits: Tensor, chosen: Tensor) -> None:
        self.load.append(chosen.reshape(-1).bincount(minlength=EXPERTS).tolist())


class BalancedExperts(Experts):
    """A buffer of biases is moved against the load."""

    def build(self, block: Any, index: int) -> None:
        super().build(block, index)
        block.register_buffer("bias", torch.zeros(EXPERTS))

    def logits(self, block: Any, tokens: Tensor) -> Tensor:
        logits: Tensor = super().logits(block, tokens) + block.bias
        return logits

    def routed(self, block: Any, logits: Tensor, chosen: Tensor) -> None:
        load = chosen.reshape(-1).bincount(minlength=EXPERTS)
        block.bias -= 0.2 * torch.sign(load - load.float().mean())
