"""Features that are objects among the arguments of a block: caches, holders, counters, functions."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.fuzz_cases.feature import FEATURES, Feature, scaled


class Holder(Feature):
    """A dictionary through which the first block gives its keys to the others."""

    argument = "shared"
    unjudged = frozenset({"shared"})

    def build(self, block: Any, index: int) -> None:
        block.index = index
        block.keys = nn.Linear(FEATURES, FEATURES)

    def begin(self, model: Any) -> None:
        self.shared: dict[str, Tensor] = {}

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return self.shared

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        if block.index == 0:
            value["keys"] = block.keys(hidden)
        return hidden * torch.cos(value["keys"])


class RewrittenHolder(Holder):
    """A dictionary from which each block reads what the block before wrote, and into which it writes."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        before = value.get("keys")
        value["keys"] = block.keys(hidden)
        return hidden * torch.cos(value["keys"] if before is None else before)


class HolderObject(Holder):
    """The same through an attribute of an object."""

    class Shared:
        """Where the keys are."""

        keys: Tensor | None = None

    def begin(self, model: Any) -> None:
        self.shared: Any = self.Shared()

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        before = value.keys
        value.keys = block.keys(hidden)
        return hidden * torch.cos(value.keys if before is None else before)


class AttributeHolder(Holder):
    """The same through an object that all blocks have, and that is no argument."""

    argument = ""
    unjudged = frozenset({"holder"})

    def attach(self, model: Any) -> None:
        self.holder = HolderObject.Shared()
        for layer in model.layers:
            layer.holder = self.holder

    def begin(self, model: Any) -> None:
        for layer in model.layers:
            layer.holder.keys = None

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        before = block.holder.keys
        block.holder.keys = block.keys(hidden)
        return hidden * torch.cos(block.holder.keys if before is None else before)


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


class Tracker:
    """Counts on itself."""

    def __init__(self) -> None:
        self.calls = 0
        self.log: list[float] = []


class CounterArgument(Feature):
    """An object that counts the calls."""

    argument = "tracker"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.tracker = Tracker()
        self.read = rng.random() < 0.5

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return self.tracker

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        value.calls += 1
        value.log.append(float(hidden.detach().mean()))
        return scaled(hidden, value.calls) if self.read else hidden


class ChangedAfter(Feature):
    """An object of which a number changes after the forward."""

    argument = "context"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.tracker = Tracker()

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return self.tracker

    def after_forward(self, model: Any) -> None:
        self.tracker.calls += 1

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return scaled(hidden, value.calls)


class ChangedBetween(ChangedAfter):
    """An object of which a number changes from block to block, as the index of the layer does."""

    argument = "progress"

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        self.tracker.calls = index
        return self.tracker

    def after_forward(self, model: Any) -> None:
        """Nothing more changes."""


class ChangedList(Feature):
    """A list of numbers that the model writes between blocks."""

    argument = "schedule"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.given = [0.0]

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        self.given[0] = float(index)
        return self.given

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return scaled(hidden, value[0])


class LazyRotary:
    """Tables that are made when they are first asked for: no cache, whatever the argument is called."""

    def __init__(self) -> None:
        self.table: Tensor | None = None

    def angles(self, hidden: Tensor) -> Tensor:
        """Of shape (positions, 1)."""
        if self.table is None:
            self.table = torch.linspace(0, 1, hidden.shape[1], dtype=hidden.dtype)[:, None]
        return self.table


class _LazyTables(Feature):
    def begin(self, model: Any) -> None:
        self.rotary = LazyRotary()

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return self.rotary

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return torch.sin(hidden + value.angles(hidden))


class LazyCache(_LazyTables):
    """Lazy tables in an argument called `cache`."""

    argument = "cache"


class LazyMemories(_LazyTables):
    """Lazy tables in an argument called `mems`."""

    argument = "mems"


class LazyState(_LazyTables):
    """Lazy tables in an argument called `state`."""

    argument = "state"


class KeyCache:
    """Keys by layer, with the interface of a cache of transformers."""

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


class EmptyCache(Feature):
    """An empty cache that a block writes its keys into; without one it computes the same."""

    argument = "past_key_values"
    unjudged = frozenset({"cache"})

    def build(self, block: Any, index: int) -> None:
        block.layer_idx = index
        block.cached = nn.Linear(FEATURES, FEATURES)

    def begin(self, model: Any) -> None:
        self.cache = KeyCache()

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return self.cache

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        keys = block.cached(hidden)
        if value is not None:
            keys = value.update(keys, block.layer_idx)
        return hidden * torch.cos(keys.mean(1, keepdim=True))


class FilledCache(EmptyCache):
    """A cache that holds keys already, which the blocks read and append to."""

    def begin(self, model: Any) -> None:
        super().begin(model)
        for layer in range(len(model.layers)):
            self.cache.layers[layer] = torch.ones(2, 2, FEATURES)


class CrossLayerCache(EmptyCache):
    """A cache through which a block reads the keys of the block before: without it the result is another."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        keys = block.cached(hidden)
        if value is not None:
            value.update(keys, block.layer_idx)
            keys = value.layers.get(block.layer_idx - 1, keys)
        return hidden * torch.cos(keys)


class UseCache(Feature):
    """`use_cache=True` for a block that makes no cache of it."""

    argument = "use_cache"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.given = rng.random() < 0.8

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return self.given

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return torch.sin(hidden) if value else torch.cos(hidden)


class FunctionArgument(Feature):
    """A function that holds a layer of the model."""

    argument = "function"

    def attach(self, model: Any) -> None:
        model.called = nn.Linear(FEATURES, FEATURES)

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        layer: Callable[[Tensor], Tensor] = model.called
        return lambda values: torch.tanh(layer(values))

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return hidden + value(hidden)


class ModuleArgument(FunctionArgument):
    """A module of the model."""

    argument = "module"

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return model.called


class IteratorArgument(Feature):
    """An iterator from which each block takes one number."""

    argument = "numbers"
    unjudged = frozenset({"numbers"})

    def begin(self, model: Any) -> None:
        self.numbers: Iterator[float] = iter([0.1 * number for number in range(9)])

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return self.numbers

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return scaled(hidden, next(value))


class PlainValues(Feature):
    """A dictionary of values without tensors, and a dtype."""

    argument = "settings"

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return {"eps": 1e-3, "dtype": hidden.dtype, "shape": hidden.shape, "names": ("a", "b"), "layer": index}

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return scaled(hidden.to(value["dtype"]).view(value["shape"]), value["layer"])
