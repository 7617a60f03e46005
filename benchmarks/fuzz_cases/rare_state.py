"""Features that keep state where few look for it: own iterators, streams, weak references, shared objects."""

from __future__ import annotations

import array
import contextvars
import functools
import io
import random
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.fuzz_cases.feature import FEATURES, Feature
from benchmarks.fuzz_cases.state import Stateful


class DeepNamespace(Stateful):
    """Namespaces and dictionaries, four deep."""

    def build(self, block: Any, index: int) -> None:
        block.space = SimpleNamespace(a=[SimpleNamespace(b={"c": SimpleNamespace(count=0)})])

    def write(self, block: Any, hidden: Tensor) -> Any:
        innermost = block.space.a[0].b["c"]
        innermost.count += 1
        return innermost.count


class Schedule:
    """An iterator with a class of its own."""

    def __init__(self) -> None:
        self.step = 0

    def __iter__(self) -> Schedule:
        return self

    def __next__(self) -> int:
        self.step += 1
        return self.step


class OwnIterator(Stateful):
    """An iterator with a class of its own."""

    def build(self, block: Any, index: int) -> None:
        block.own_schedule = Schedule()

    def write(self, block: Any, hidden: Tensor) -> Any:
        return next(block.own_schedule)


class BuiltIterator(Stateful):
    """An iterator that a builtin function made: over a range, zipped, mapped or numbered."""

    def build(self, block: Any, index: int) -> None:
        block.built = zip(range(1, 99), map(float, range(99)), strict=False) if self._variant else enumerate("a" * 99)

    def write(self, block: Any, hidden: Tensor) -> Any:
        return next(block.built)[0]


class TextStream(Stateful):
    """A stream in memory."""

    def build(self, block: Any, index: int) -> None:
        block.stream = io.StringIO()

    def write(self, block: Any, hidden: Tensor) -> Any:
        block.stream.write("a")
        return len(block.stream.getvalue())


class PlainArray(Stateful):
    """An array of the standard library."""

    def build(self, block: Any, index: int) -> None:
        block.numbers_array = array.array("d", [0.0])

    def write(self, block: Any, hidden: Tensor) -> Any:
        block.numbers_array[0] += 1
        return block.numbers_array[0]


class WeakReference(Stateful):
    """An object outside that the block knows by a weak reference."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.counter = Schedule()

    def build(self, block: Any, index: int) -> None:
        block.reference = weakref.ref(self.counter)

    def write(self, block: Any, hidden: Tensor) -> Any:
        return next(block.reference())


class ContextVariable(Stateful):
    """A context variable, to which nothing in the block leads. What was read of it last is the recompute's."""

    unjudged = frozenset({"calls"})

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._variable: contextvars.ContextVar[int] = contextvars.ContextVar("calls")
        self._variable.set(0)
        self.calls = 0

    def write(self, block: Any, hidden: Tensor) -> Any:
        self._variable.set(self._variable.get() + 1)
        self.calls = self._variable.get()
        return self.calls


class Memoised(Stateful):
    """A function that remembers its results, one of them per call."""

    def build(self, block: Any, index: int) -> None:
        @functools.cache
        def table(length: int) -> Tensor:
            return torch.linspace(0, 1, length)

        block.table_of = table

    def write(self, block: Any, hidden: Tensor) -> Any:
        return block.table_of(hidden.shape[-1])


class SharedCounter(Stateful):
    """One object that all blocks count on."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.shared_counter = Schedule()

    def build(self, block: Any, index: int) -> None:
        block.shared_counter = self.shared_counter

    def write(self, block: Any, hidden: Tensor) -> Any:
        return next(block.shared_counter)


class CountOnModel(Stateful):
    """A number on the model, which the block holds in a list."""

    def attach(self, model: Any) -> None:
        model.global_step = 0
        for layer in model.layers:
            object.__setattr__(layer, "owner", [model])

    def write(self, block: Any, hidden: Tensor) -> Any:
        block.owner[0].global_step += 1
        return block.owner[0].global_step


class Cycle(Stateful):
    """An object that holds itself."""

    def build(self, block: Any, index: int) -> None:
        block.node = SimpleNamespace(count=0)
        block.node.itself = [block.node]

    def write(self, block: Any, hidden: Tensor) -> Any:
        block.node.itself[0].count += 1
        return block.node.count


class SameObjectTwice(Stateful):
    """A list that is also in a dictionary: what is written here is read there."""

    def build(self, block: Any, index: int) -> None:
        block.first_name = [0]
        block.second_name = {"same": block.first_name}

    def write(self, block: Any, hidden: Tensor) -> Any:
        block.first_name[0] += 1
        return block.second_name["same"][0]


class ReplacedContents(Stateful):
    """A dictionary whose values are tensors that every call replaces."""

    def build(self, block: Any, index: int) -> None:
        block.averages = {"mean": torch.zeros(FEATURES)}

    def write(self, block: Any, hidden: Tensor) -> Any:
        block.averages["mean"] = 0.5 * block.averages["mean"] + hidden.detach().mean((0, 1))
        return block.averages["mean"]


class ReplacedFunction(Stateful):
    """A function on the block that every call replaces by another."""

    def build(self, block: Any, index: int) -> None:
        block.gain = functools.partial(float, 1)

    def write(self, block: Any, hidden: Tensor) -> Any:
        gain: Callable[[], float] = block.gain
        block.gain = functools.partial(float, gain() + 1)
        return gain()


class LazyLayer(Feature):
    """A layer whose parameters are made in the first call."""

    def build(self, block: Any, index: int) -> None:
        block.lazy_layer = None

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        if block.lazy_layer is None:
            block.lazy_layer = nn.Linear(FEATURES, FEATURES, bias=False)
            nn.init.eye_(block.lazy_layer.weight)
        return torch.sin(block.lazy_layer(hidden))
