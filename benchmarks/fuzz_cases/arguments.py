"""Features that a block is given or gives: tensors, objects and caches among its arguments, and its outputs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.fuzz_cases.model import Feature, Output, linear, named, scaled

CONTAINERS: dict[str, tuple[Callable[[Tensor, Tensor], Any], Callable[[Any], Iterable[Tensor]]]] = {
    "none": (lambda a, b: a, lambda value: [value]),
    "list": (lambda a, b: [a, b], list),
    "tuple": (lambda a, b: (a, None, b), lambda value: [value[0], value[2]]),
    "dict": (lambda a, b: {"a": a, "b": b, 3: "c"}, lambda value: [value["a"], value["b"]]),
    "nested": (lambda a, b: {"a": [a, {"b": (b,)}]}, lambda value: [value["a"][0], value["a"][1]["b"][0]]),
}


class Tensors(Feature):
    """A tensor of a layer of the model, detached or not, the same for all blocks; alone, or beside another."""

    argument = "streams"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._make, self._read = CONTAINERS[rng.choice(list(CONTAINERS))]
        self._shared = rng.random() < 0.3

    def attach(self, model: Any) -> None:
        model.other = linear()

    def begin(self, model: Any) -> None:
        self._first: Tensor | None = None

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        if self._first is None:
            self._first = torch.sin(model.other(hidden))
        first = self._first if self._variant else self._first.detach()
        return self._make(first, hidden if self._shared else hidden * 0.5)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        for tensor in self._read(value):
            hidden = hidden * torch.cos(tensor)
        return hidden


# objects


class SharedKeys(Feature):
    """A dictionary through which the first block gives its keys to the others."""

    argument = "shared"
    unjudged = frozenset({"given"})

    def build(self, block: Any, index: int) -> None:
        block.index = index
        block.keys = linear()

    def begin(self, model: Any) -> None:
        self.given = {}

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        if block.index == 0:
            value["keys"] = block.keys(hidden)
        return hidden * torch.cos(value["keys"])


class Collector(Feature):
    """A list to which every block appends its hidden states, detached or not; the model uses them."""

    argument = "collected"
    unjudged = frozenset({"given"})

    def begin(self, model: Any) -> None:
        self.given = []

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        value.append(hidden.detach() if self._variant else hidden * 1)
        return hidden

    def added_loss(self) -> Tensor | None:
        return torch.stack(self.given).square().mean()


class StoredLoss(Feature):
    """A loss of each block, on the block, where the model reads it."""

    def attach(self, model: Any) -> None:
        self._layers = model.layers

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        block.stored_loss = torch.sin(hidden).mean()
        return hidden

    def added_loss(self) -> Tensor | None:
        return torch.stack([layer.stored_loss for layer in self._layers]).sum()


class LateBinding(Feature):
    """A list of which a number changes from block to block, as the index of the layer does."""

    argument = "progress"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.given = [0.0]

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        self.given[0] = float(index)
        return self.given

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return scaled(hidden, value[0])


# outputs


@dataclass
class BlockOutput:
    """A block's result, by name."""

    hidden: Tensor
    extras: tuple[Tensor, ...] = ()


Unpack = Callable[[Any], tuple[Tensor, list[Tensor]]]
_OUTPUTS: dict[str, tuple[Callable[[Tensor, Tensor], Any], Unpack]] = {
    "TupleOutput": (lambda h, given: (h, None, torch.softmax(h, -1)), lambda result: (result[0], [result[2]])),
    "DictOutput": (lambda h, given: {"h": h, "extra": h.square()}, lambda result: (result["h"], [result["extra"]])),
    "DataclassOutput": (
        lambda h, given: BlockOutput(h, (torch.sin(h), h.detach())),
        lambda result: (result.hidden, list(result.extras)),
    ),
    "GivenOutput": (lambda h, given: (h, given, given[:, :1]), lambda result: (result[0], list(result[1:]))),
}


# caches


class Cache:
    """Keys by layer, called as the base class of transformers is."""

    def __init__(self) -> None:
        self.layers: dict[int, Tensor] = {}

    def update(self, keys: Tensor, layer: int) -> Tensor:
        """Return the keys of a layer, old and new."""
        before = self.layers.get(layer)
        self.layers[layer] = keys if before is None else torch.cat([before, keys], 1)
        return self.layers[layer]

    def get_seq_length(self, layer: int = 0) -> int:
        """Return how many keys a layer has."""
        return self.layers[layer].shape[1] if layer in self.layers else 0

    def detach(self) -> None:
        """Drop the graphs of all keys."""
        self.layers = {layer: keys.detach() for layer, keys in self.layers.items()}


class EmptyCache(Feature):
    """An empty cache that a block writes its keys into; the result is the same without one."""

    argument = "past_key_values"
    unjudged = frozenset({"given"})

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.of_transformers = rng.random() < 0.5

    def build(self, block: Any, index: int) -> None:
        block.layer_idx = index
        block.cached = linear()

    def begin(self, model: Any) -> None:
        self.given = Cache()

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        keys = block.cached(hidden)
        if value is not None:
            keys = value.update(keys, block.layer_idx)
        return hidden * torch.cos(keys.mean(1, keepdim=True))


class CacheOfCaller(EmptyCache):
    """A cache given to the model: one forward fills it, the next reads it, and what it holds in the end counts.

    Where a backward has ended in between, the keys have no gradients any more.
    """

    unjudged = frozenset()
    strict = frozenset({"given"})

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._forwards = 0

    def begin(self, model: Any) -> None:
        """Do nothing: the caller has it."""

    def inputs(self) -> dict[str, Any]:
        self._forwards += 1
        if self._forwards % 2:
            self.given = Cache()
        elif self._variant:
            self.given.detach()
        return {self.argument: self.given}

    def after_backward(self) -> None:
        self.given.detach()


class UseCache(Feature):
    """`use_cache` for a block that computes something else with it, beside an argument for a cache."""

    argument = "use_cache"
    beside = ("past_key_values",)

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.of_transformers = rng.random() < 0.5
        self.given = rng.random() < 0.8

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return torch.sin(hidden) if value else torch.cos(hidden)


KINDS: dict[str, dict[str, type[Feature]]] = {
    "arguments": named(Tensors, SharedKeys, Collector, StoredLoss, LateBinding),
    "outputs": {
        name: type(name, (Output,), {"pack": staticmethod(pack), "unpack": staticmethod(unpack)})
        for name, (pack, unpack) in _OUTPUTS.items()
    },
    "caches": named(EmptyCache, CacheOfCaller, UseCache),
}
