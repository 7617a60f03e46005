"""Features that are caches: filled by one forward of a training, and read by the next or by another block."""

from __future__ import annotations

import importlib.util
import random
from typing import Any

import torch
from torch import Tensor

from benchmarks.fuzz_cases.feature import FEATURES, Feature, linear
from ckpt_surgery.model_patches.vocabulary import PAST_STATE


class Segments:
    """Keys by layer, in an object that nothing tells to be a cache."""

    def __init__(self) -> None:
        self.layers: dict[int, Tensor] = {}

    def update(self, keys: Tensor, layer: int) -> Tensor:
        """The keys of a layer, old and new."""
        before = self.layers.get(layer)
        self.layers[layer] = keys if before is None else torch.cat([before, keys], 1)
        return self.layers[layer]

    def get_seq_length(self, layer: int = 0) -> int:
        """How many keys a layer has."""
        return self.layers[layer].shape[1] if layer in self.layers else 0


class KeyCache(Segments):
    """The same, called a cache."""


class Cache(Segments):
    """The same, called as the base class of transformers is."""


class StaticCache(Cache):
    """Keys without gradient, written in place into memory that was there before."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: dict[int, int] = {}

    def update(self, keys: Tensor, layer: int) -> Tensor:
        start = self.lengths.get(layer, 0)
        memory = self.layers.setdefault(layer, keys.new_zeros(keys.shape[0], 4 * keys.shape[1], keys.shape[2]))
        before = memory[:, :start].clone()
        with torch.no_grad():
            memory[:, start : start + keys.shape[1]] = keys
        self.lengths[layer] = start + keys.shape[1]
        return torch.cat([before, keys], 1)

    def get_seq_length(self, layer: int = 0) -> int:
        return self.lengths.get(layer, 0)


_OWN: dict[str, type[Segments]] = {kind.__name__: kind for kind in (Segments, KeyCache, Cache, StaticCache)}
_OF_TRANSFORMERS = "DynamicCache"
KINDS = (*_OWN, _OF_TRANSFORMERS)


def _made(kind: str) -> Any:
    """A new cache; one of our own where transformers is not installed."""
    if kind in _OWN or importlib.util.find_spec("transformers") is None:
        return _OWN.get(kind, Cache)()
    import transformers

    return getattr(transformers, kind)()


def _updated(cache: Any, keys: Tensor, layer: int) -> Tensor:
    """The keys of a layer, old and new."""
    updated: Tensor = cache.update(keys, layer) if isinstance(cache, Segments) else cache.update(keys, keys, layer)[0]
    return updated


def _detach(cache: Any) -> None:
    """Drop the graphs of all keys."""
    if isinstance(cache, Segments):
        cache.layers = {layer: keys.detach() for layer, keys in cache.layers.items()}
        return
    for layer in filter(lambda layer: layer.get_seq_length(), cache.layers):
        layer.keys, layer.values = layer.keys.detach(), layer.values.detach()


class EmptyCache(Feature):
    """An empty cache that a block writes its keys into; without one it computes the same."""

    argument = "past_key_values"
    unjudged = frozenset({"cache"})

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._kind = rng.choice(KINDS)
        self.of_transformers = rng.random() < 0.5

    def build(self, block: Any, index: int) -> None:
        block.layer_idx = index
        block.cached = linear()

    def begin(self, model: Any) -> None:
        self.cache: Any = _made(self._kind)

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return self.cache

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        keys = block.cached(hidden)
        if value is not None:
            keys = _updated(value, keys, block.layer_idx)
        return hidden * torch.cos(keys.mean(1, keepdim=True))


class FilledCache(EmptyCache):
    """A cache that holds keys already, which the blocks read and append to."""

    def begin(self, model: Any) -> None:
        super().begin(model)
        for layer in range(len(model.layers)):
            _updated(self.cache, torch.ones(2, 2, FEATURES), layer)


class CrossLayerCache(EmptyCache):
    """A cache through which a block reads the keys of the block before: without it the result is another.

    Its blocks do not pass for those of transformers, of which the families that do so are known.
    """

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._kind = rng.choice(tuple(_OWN)[:3])
        self.of_transformers = False

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        keys = block.cached(hidden)
        value.update(keys, block.layer_idx)
        return hidden * torch.cos(value.layers.get(block.layer_idx - 1, keys))


class CacheOfModel(EmptyCache):
    """A cache that the model keeps: one forward fills it, and the next reads it, with gradients or without.

    Where a backward has ended in between, the keys have no gradients any more.
    """

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._forwards = 0
        self._detached = rng.random() < 0.4

    def begin(self, model: Any) -> None:
        self._next()
        model.kept_cache = self.cache

    def _next(self) -> None:
        self._forwards += 1
        if self._forwards % 2 or not hasattr(self, "cache"):
            self.cache = _made(self._kind)
        elif self._detached:
            _detach(self.cache)

    def after_backward(self, model: Any) -> None:
        if hasattr(self, "cache"):
            _detach(self.cache)


class CacheOfCaller(CacheOfModel):
    """The same, given to the model by its caller. What it holds in the end counts where it is told to be a cache."""

    unjudged = frozenset()

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        by_name = {"KeyCache"} if self.argument in PAST_STATE else set()
        if self._kind in {"Cache", "StaticCache", _OF_TRANSFORMERS, *by_name}:
            self.strict = frozenset({"cache"})

    def begin(self, model: Any) -> None:
        """The caller has it."""

    def inputs(self) -> dict[str, Any]:
        self._next()
        return {self.argument: self.cache}


class CacheUnderOtherName(CacheOfCaller):
    """The same in an argument that is called otherwise."""

    argument = "memory_of_layers"
