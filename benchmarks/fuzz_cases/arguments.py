"""Features that a block is given or gives: tensors, objects and caches among its arguments, and its outputs."""

from __future__ import annotations

import importlib.util
import random
from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from benchmarks.fuzz_cases.feature import FEATURES, Feature, Output, linear, of_kind, scaled
from ckpt_surgery.model_patches.vocabulary import PAST_STATE

# arguments


class Point(NamedTuple):
    """Two named tensors."""

    x: Tensor
    y: Tensor


@dataclass
class Streams:
    """Tensors in a dataclass, beside something else."""

    main: Tensor
    name: str
    rest: list[Tensor]


CONTAINERS: dict[str, tuple[Callable[[Tensor, Tensor], Any], Callable[[Any], Iterable[Tensor]]]] = {
    "list": (lambda a, b: [a, b], list),
    "tuple": (lambda a, b: (a, None, b), lambda value: [value[0], value[2]]),
    "dict": (lambda a, b: {"a": a, "b": b, 3: "c"}, lambda value: [value["a"], value["b"]]),
    "nested": (lambda a, b: {"a": [a, {"b": (b,)}]}, lambda value: [value["a"][0], value["a"][1]["b"][0]]),
    "named tuple": (Point, lambda value: [value.x, value.y]),
    "dataclass": (lambda a, b: Streams(a, "main", [b]), lambda value: [value.main, *value.rest]),
    "proxy": (lambda a, b: MappingProxyType({"a": a, "b": b}), lambda value: [value["a"], value["b"]]),
    "user dict": (lambda a, b: UserDict({"a": a, "b": b}), lambda value: [value["a"], value["b"]]),
    "namespace": (lambda a, b: SimpleNamespace(a=a, b=b), lambda value: [value.a, value.b]),
    "set": (lambda a, b: {a}, list),
    "closure": (lambda a, b: lambda: [a, b], lambda value: value()),
}


class TensorArgument(Feature):
    """A tensor with gradient, made of a layer of the model: the same for all blocks, or without gradient."""

    argument = "residual"

    def attach(self, model: Any) -> None:
        model.other = linear()

    def begin(self, model: Any) -> None:
        self._first: Tensor | None = None

    def tensor(self, model: Any, hidden: Tensor) -> Tensor:
        """Return the tensor for this forward."""
        if self._first is None:
            self._first = torch.sin(model.other(hidden))
        return self._first

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        tensor = self.tensor(model, hidden)
        return tensor if self._variant else tensor.detach()

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return hidden * torch.cos(value)


class ContainedTensors(TensorArgument):
    """Two tensors, with gradient or without, in a container; one of them may be the hidden states."""

    argument = "streams"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.container = rng.choice(list(CONTAINERS))
        self._shared, self._both = rng.random() < 0.3, rng.random() < 0.5

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        make, _ = CONTAINERS[self.container]
        second = hidden * 0.5 if self._both else torch.ones_like(hidden)
        return make(super().value(model, hidden, index), hidden if self._shared else second)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        for tensor in CONTAINERS[self.container][1](value):
            hidden = hidden * torch.cos(tensor)
        return hidden


class HiddenAgain(Feature):
    """The hidden states once more, under another name, or a view of them."""

    argument = "first_hidden_states"

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return hidden if self._variant else hidden[:, :1].expand_as(hidden)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return hidden * torch.cos(value)


class Mask(Feature):
    """A mask of booleans, expanded over the batch."""

    argument = "attention_mask"

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return (torch.arange(hidden.shape[1]) % 3 > 0)[None, :, None].expand(hidden.shape[0], -1, 1)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return hidden.masked_fill(~value, 0.25)


class LeafArgument(Feature):
    """A leaf with gradient that is no parameter; its gradient counts."""

    argument = "prompt"

    def begin(self, model: Any) -> None:
        if not hasattr(self, "leaf"):
            self.leaf = torch.linspace(0, 1, FEATURES, requires_grad=True)

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return self.leaf

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return torch.sin(hidden + value)


class WrittenMask(Feature):
    """A tensor without gradient that the block writes into: each block counts on it."""

    argument = "counts"

    def begin(self, model: Any) -> None:
        self.given = torch.zeros(1)

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return self.given

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        value += 1
        return scaled(hidden, value)


# objects


class Holder(Feature):
    """A dictionary through which the first block gives its keys to the others."""

    argument = "shared"
    unjudged = frozenset({"shared"})

    def build(self, block: Any, index: int) -> None:
        block.index = index
        block.keys = linear()

    def begin(self, model: Any) -> None:
        self.shared: Any = {}

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return self.shared

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        if block.index == 0:
            value["keys"] = block.keys(hidden)
        return hidden * torch.cos(value["keys"])


class Collector(Feature):
    """A list to which every block appends its hidden states; the model uses them."""

    argument = "collected"
    unjudged = frozenset({"collected"})

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.detached = rng.random() < 0.5

    def begin(self, model: Any) -> None:
        self.collected: list[Tensor] = []

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return self.collected

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        value.append(hidden.detach() if self.detached else hidden * 1)
        return hidden

    def added_loss(self) -> Tensor | None:
        return torch.stack(self.collected).square().mean()


class ChangedBetween(Feature):
    """A list with a number that changes from block to block, like the layer's index."""

    argument = "progress"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.given = [0.0]

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        self.given[0] = float(index)
        return self.given

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return scaled(hidden, value[0])


class SwitchedAround(Feature):
    """An outside switch that is on in the model's forward and off in its backward."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.on = False

    def begin(self, model: Any) -> None:
        self.on = True

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return torch.sin(hidden) if self.on else torch.cos(hidden)

    def after_forward(self, model: Any) -> None:
        self.on = False


class LazyTables(Feature):
    """Tables made when first asked for: no cache, although the argument is named like one."""

    argument = "state"

    def begin(self, model: Any) -> None:
        self.rotary = SimpleNamespace(table=None)

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return self.rotary

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        if value.table is None:
            value.table = torch.linspace(0, 1, hidden.shape[1], dtype=hidden.dtype)[:, None]
        return torch.sin(hidden + value.table)


class FunctionArgument(Feature):
    """A function that holds a layer of the model, or that layer."""

    argument = "function"

    def attach(self, model: Any) -> None:
        model.called = linear()

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        layer: Callable[[Tensor], Tensor] = model.called
        return layer if self._variant else lambda values: layer(values)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return hidden + torch.tanh(value(hidden))


# outputs


@dataclass
class BlockOutput:
    """A block's result, by name."""

    hidden: Tensor
    extras: tuple[Tensor, ...] = ()


class NamedOutput(NamedTuple):
    """A block's result, by name and place."""

    hidden: Tensor
    extra: Tensor


def _complex(block: Any, hidden: Tensor, given: Tensor) -> Any:
    hidden = hidden.float()
    return hidden, torch.complex(hidden, torch.sin(hidden))


Pack = Callable[[Any, Tensor, Tensor], Any]
Unpack = Callable[[Any], tuple[Tensor, list[Tensor]]]


def _pair(result: Any) -> tuple[Tensor, list[Tensor]]:
    return result[0], list(result[1:])


_OUTPUT_ROWS: dict[str, tuple[Pack, Unpack]] = {
    "TupleOutput": (lambda b, h, g: (h, None, torch.softmax(h, -1)), lambda result: (result[0], [result[2]])),
    "UnusedOutput": (lambda b, h, g: (h, torch.softmax(h, -1)), lambda result: (result[0], [])),
    "DictOutput": (lambda b, h, g: {"h": h, "extra": h.square()}, lambda result: (result["h"], [result["extra"]])),
    "OrderedOutput": (lambda b, h, g: OrderedDict(h=h, extra=h.square()), lambda r: (r["h"], [r["extra"]])),
    "DataclassOutput": (
        lambda b, h, g: BlockOutput(h, (torch.sin(h), h.detach())),
        lambda result: (result.hidden, list(result.extras)),
    ),
    "NamedTupleOutput": (lambda b, h, g: NamedOutput(h, h.exp()), _pair),
    "NestedOutput": (
        lambda b, h, g: (h, {"a": [torch.sin(h), (h.detach(), 3)]}),
        lambda result: (result[0], [result[1]["a"][0], result[1]["a"][1][0]]),
    ),
    "SameTensorOutput": (lambda b, h, g: (h, h), lambda result: (result[0], [result[1] * 2])),
    "ViewOutput": (lambda b, h, g: (h, h[:, 1:].transpose(0, 1)), _pair),
    "GivenOutput": (lambda b, h, g: (h, g, g[:, :1]), _pair),
    "WeightOutput": (lambda b, h, g: (h, b.up.weight, b.down.weight[1:]), _pair),
    "NumberOutput": (
        lambda b, h, g: [h, float(h.detach().mean()), "text"],
        lambda result: (result[0] * (1 + 0.1 * result[1]), []),
    ),
    "ComplexOutput": (_complex, lambda result: (result[0], [result[1].abs()])),
}


class _Row(Output):
    """A form of a row of the table."""

    packed: ClassVar[Pack]
    unpacked: ClassVar[Unpack]

    def pack(self, block: Any, hidden: Tensor, given: Tensor) -> Any:
        return type(self).packed(block, hidden, given)

    def unpack(self, result: Any) -> tuple[Tensor, list[Tensor]]:
        return type(self).unpacked(result)


_OUTPUTS: dict[str, type[Output]] = {
    name: type(name, (_Row,), {"__doc__": name, "packed": staticmethod(pack), "unpacked": staticmethod(unpack)})
    for name, (pack, unpack) in _OUTPUT_ROWS.items()
}


class TableOutput(Output):
    """A table that is an attribute of the block, returned beside its result."""

    def build(self, block: Any, index: int) -> None:
        block.returned_table = torch.linspace(0, 1, 8)

    def pack(self, block: Any, hidden: Tensor, given: Tensor) -> Any:
        return hidden * torch.cos(block.returned_table), block.returned_table

    def unpack(self, result: Any) -> tuple[Tensor, list[Tensor]]:
        return result[0] * result[1], [result[1]]


class StoredOutput(Output):
    """A result that is also on the block, where the model reads it."""

    def pack(self, block: Any, hidden: Tensor, given: Tensor) -> Any:
        block.output = torch.sin(hidden)
        return hidden

    def after_block(self, model: Any, hidden: Any, index: int) -> Any:
        return hidden + 0.1 * model.layers[index].output


# caches


class Segments:
    """Keys by layer, in an object that does not look like a cache."""

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


class KeyCache(Segments):
    """The same, named a cache."""


class Cache(Segments):
    """The same, named like the base class of transformers."""


class StaticCache(Cache):
    """Keys without gradient, written into preallocated memory."""

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


_CACHES: dict[str, type[Segments]] = {kind.__name__: kind for kind in (Segments, KeyCache, Cache, StaticCache)}
_OF_TRANSFORMERS = "DynamicCache"
_CACHE_KINDS = (*_CACHES, _OF_TRANSFORMERS)


def _made(kind: str) -> Any:
    """Make a new cache; one of our own where transformers is not installed."""
    if kind in _CACHES or importlib.util.find_spec("transformers") is None:
        return _CACHES.get(kind, Cache)()
    import transformers

    return getattr(transformers, kind)()


def _updated(cache: Any, keys: Tensor, layer: int) -> Tensor:
    """Return the keys of a layer, old and new."""
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
    """An empty cache that a block writes its keys into; the result is the same without one."""

    argument = "past_key_values"
    unjudged = frozenset({"cache"})

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._kind = rng.choice(_CACHE_KINDS)
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
    """A cache with keys, which the blocks read and append to."""

    def begin(self, model: Any) -> None:
        super().begin(model)
        for layer in range(len(model.layers)):
            _updated(self.cache, torch.ones(2, 2, FEATURES), layer)


class CrossLayerCache(EmptyCache):
    """A cache through which a block reads the keys of the block before; the result depends on it.

    Its blocks do not look like those of transformers, of which the families that do so are known.
    """

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._kind = rng.choice(tuple(_CACHES)[:3])
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
    """The same, given to the model by its caller. Its final contents count if it is declared a cache."""

    unjudged = frozenset()

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        by_name = {"KeyCache"} if self.argument in PAST_STATE else set()
        if self._kind in {"Cache", "StaticCache", _OF_TRANSFORMERS, *by_name}:
            self.strict = frozenset({"cache"})

    def begin(self, model: Any) -> None:
        """Do nothing: the caller has it."""

    def inputs(self) -> dict[str, Any]:
        self._next()
        return {self.argument: self.cache}


# use_cache


class UseCache(Feature):
    """`use_cache` for a block that computes something else with it, beside an argument for a cache."""

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
    """The same, with the opposite value for every second block."""

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


KINDS: dict[str, dict[str, type[Feature]]] = {
    "arguments": of_kind({}, TensorArgument, ContainedTensors, HiddenAgain, Mask, LeafArgument, WrittenMask),
    "objects": of_kind({}, Holder, Collector, ChangedBetween, SwitchedAround, LazyTables, FunctionArgument),
    "outputs": of_kind(_OUTPUTS, TableOutput, StoredOutput),
    "caches": of_kind({}, EmptyCache, FilledCache, CrossLayerCache, CacheOfModel, CacheOfCaller),
    "use_cache": of_kind({}, UseCache, ChangingUseCache, UseCacheOutput),
}
