"""Features that are `use_cache`: a block must get the one that it was called with, where its result depends on it."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from benchmarks.fuzz_cases.feature import Feature, Output, linear


class UseCache(Feature):
    """`use_cache` for a block that computes something else with it; an argument for a cache stands beside it."""

    argument = "use_cache"
    beside = ("past_key_values",)

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.of_transformers = rng.random() < 0.5
        self._given = rng.random() < 0.8

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return self._given

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return torch.sin(hidden) if value else torch.cos(hidden)


class ChangingUseCache(UseCache):
    """The same, and every second block is given the other."""

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return index % 2 == 0


class UseCacheOutput(UseCache, Output):
    """With `use_cache` a block returns its keys too, and the model uses them."""

    def build(self, block: Any, index: int) -> None:
        block.returned_keys = linear()

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        block.asked = bool(value)
        return hidden

    def pack(self, block: Any, hidden: Tensor, given: Tensor) -> Any:
        return (hidden, (block.returned_keys(hidden),)) if vars(block).get("asked") else (hidden,)

    def unpack(self, result: Any) -> tuple[Tensor, list[Tensor]]:
        return result[0], [keys for more in result[1:] for keys in more]
