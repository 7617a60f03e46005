"""Features that keep state between calls: on the block, in objects and containers there, or outside."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

from benchmarks.fuzz_cases.feature import FEATURES, Feature, scaled


class Stateful(Feature):
    """Writes something in every call; what it wrote changes the hidden states, or does not."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.read = rng.random() < 0.6

    def write(self, block: Any, hidden: Tensor) -> Any:
        """Write the state; returns a number or a small tensor made of it."""
        raise NotImplementedError

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        state = self.write(block, hidden)
        return scaled(hidden, state) if self.read else hidden


class CountAttribute(Stateful):
    """A number on the block."""

    def build(self, block: Any, index: int) -> None:
        block.calls = 0

    def write(self, block: Any, hidden: Tensor) -> Any:
        block.calls += 1
        return block.calls


class CountOnPart(Stateful):
    """A number on a submodule."""

    def write(self, block: Any, hidden: Tensor) -> Any:
        block.up.calls = getattr(block.up, "calls", 0) + 1
        return block.up.calls


class CountOnParameter(Stateful):
    """A number on a parameter."""

    def write(self, block: Any, hidden: Tensor) -> Any:
        block.up.weight.calls = getattr(block.up.weight, "calls", 0) + 1
        return block.up.weight.calls


class CountBuffer(Stateful):
    """A buffer that is counted up in place."""

    def build(self, block: Any, index: int) -> None:
        block.register_buffer("count", torch.zeros((), dtype=torch.long))

    def write(self, block: Any, hidden: Tensor) -> Any:
        block.count += 1
        return block.count


class LargeBuffer(Stateful):
    """A buffer of more elements than anyone copies for nothing, written in place in some calls only."""

    def build(self, block: Any, index: int) -> None:
        block.register_buffer("usage", torch.zeros(5000))
        block.usage_calls = 0

    def write(self, block: Any, hidden: Tensor) -> Any:
        block.usage_calls += 1
        if block.usage_calls >= (3 if self._variant else 1):
            block.usage[:FEATURES] += hidden.detach().float().abs().mean((0, 1))
        return block.usage[:FEATURES]


class MovingAverage(Stateful):
    """A buffer that every call replaces by another tensor."""

    def build(self, block: Any, index: int) -> None:
        block.register_buffer("average", torch.zeros(FEATURES))

    def write(self, block: Any, hidden: Tensor) -> Any:
        block.average = 0.9 * block.average + 0.1 * hidden.detach().mean((0, 1))
        return block.average


@dataclass
class Statistics:
    """State in an object."""

    count: int = 0
    mean: Tensor | None = None
    inner: list[Any] = field(default_factory=list)


class StateObject(Stateful):
    """Numbers and a tensor in an object."""

    def build(self, block: Any, index: int) -> None:
        block.statistics = Statistics()

    def write(self, block: Any, hidden: Tensor) -> Any:
        statistics = block.statistics
        statistics.count += 1
        statistics.mean = hidden.detach().mean() + (0 if statistics.mean is None else 0.5 * statistics.mean)
        return statistics.count + statistics.mean


class NestedObjects(Stateful):
    """An object in an object in a list."""

    def build(self, block: Any, index: int) -> None:
        block.nest = [Statistics(inner=[Statistics(), {"last": 0.0}])]

    def write(self, block: Any, hidden: Tensor) -> Any:
        inner = block.nest[0].inner
        inner[0].count += 1
        inner[1]["last"] = float(hidden.detach().mean())
        return inner[0].count


class Slotted:
    """An object without a dictionary."""

    __slots__ = ("count", "values")

    def __init__(self) -> None:
        self.count, self.values = 0, [0.0]


class SlottedObject(Stateful):
    """State in an object without a dictionary."""

    def build(self, block: Any, index: int) -> None:
        block.slotted = Slotted()

    def write(self, block: Any, hidden: Tensor) -> Any:
        block.slotted.count += 1
        block.slotted.values[0] += float(hidden.detach().mean())
        return block.slotted.count + block.slotted.values[0]


class TensorsInDict(Stateful):
    """Tensors in a dictionary, written in place."""

    def build(self, block: Any, index: int) -> None:
        block.tables = {"sums": torch.zeros(FEATURES), "deep": {"calls": torch.zeros(1)}}

    def write(self, block: Any, hidden: Tensor) -> Any:
        block.tables["sums"].add_(hidden.detach().mean((0, 1)))
        block.tables["deep"]["calls"] += 1
        return block.tables["sums"] + block.tables["deep"]["calls"]


class TensorInTuple(Stateful):
    """A tensor in a tuple, written in place."""

    def build(self, block: Any, index: int) -> None:
        block.pair = (torch.zeros(1), "name")

    def write(self, block: Any, hidden: Tensor) -> Any:
        block.pair[0].add_(1)
        return block.pair[0]


class TensorAttribute(Stateful):
    """A tensor that is no buffer, written in place: a memory bank with a pointer."""

    def build(self, block: Any, index: int) -> None:
        block.bank, block.pointer = torch.zeros(4, FEATURES), 0

    def write(self, block: Any, hidden: Tensor) -> Any:
        block.bank[block.pointer] = hidden.detach().mean((0, 1))
        block.pointer = (block.pointer + 1) % 4
        return block.bank.sum(0)


class GrowingList(Stateful):
    """A list that every call appends to."""

    def build(self, block: Any, index: int) -> None:
        block.history = []

    def write(self, block: Any, hidden: Tensor) -> Any:
        block.history.append(float(hidden.detach().mean()))
        return len(block.history)


class MixedContainers(Stateful):
    """A deque, a set, a counter, a default dictionary and a bytearray."""

    def build(self, block: Any, index: int) -> None:
        block.recent, block.seen, block.kinds = deque([0.0], maxlen=2), {0}, Counter(calls=0)
        block.groups, block.raw = defaultdict(list), bytearray(1)

    def write(self, block: Any, hidden: Tensor) -> Any:
        block.recent.append(float(hidden.detach().mean()))
        block.seen.add(len(block.seen))
        block.kinds["calls"] += 1
        block.groups["a"].append(1)
        block.raw[0] += 1
        return block.kinds["calls"] + sum(block.recent)


class NestedContainers(Stateful):
    """A list in a dictionary in a list."""

    def build(self, block: Any, index: int) -> None:
        block.containers = [{"calls": [0], "sums": [{"value": torch.zeros(1)}]}]

    def write(self, block: Any, hidden: Tensor) -> Any:
        block.containers[0]["calls"][0] += 1
        block.containers[0]["sums"][0]["value"] += 1
        return block.containers[0]["calls"][0] + block.containers[0]["sums"][0]["value"]


class NumpyArray(Stateful):
    """An array, written in place."""

    def build(self, block: Any, index: int) -> None:
        block.array = numpy.zeros(2)

    def write(self, block: Any, hidden: Tensor) -> Any:
        block.array += 1
        return float(block.array[0])


class Pair(NamedTuple):
    """State that is replaced."""

    calls: int
    last: float


class ReplacedTuple(Stateful):
    """A named tuple, replaced in every call."""

    def build(self, block: Any, index: int) -> None:
        block.pair_state = Pair(0, 0.0)

    def write(self, block: Any, hidden: Tensor) -> Any:
        block.pair_state = Pair(block.pair_state.calls + 1, float(hidden.detach().mean()))
        return block.pair_state.calls


class CountingIterator(Stateful):
    """An iterator of itertools, or one over a list."""

    def build(self, block: Any, index: int) -> None:
        make: Callable[[], Iterator[Any]] = self._rng.choice(
            [lambda: itertools.count(1), lambda: itertools.cycle([1, 2, 3]), lambda: iter(list(range(1, 99)))]
        )
        block.numbers = make()

    def write(self, block: Any, hidden: Tensor) -> Any:
        return next(block.numbers)


def _numbers() -> Iterator[int]:
    yield from range(1, 99)


class PythonGenerator(Stateful):
    """A generator of Python."""

    def build(self, block: Any, index: int) -> None:
        block.schedule = _numbers()

    def write(self, block: Any, hidden: Tensor) -> Any:
        return next(block.schedule)


def _counter() -> Callable[[], int]:
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return count

    return tick


class ClosureCount(Stateful):
    """A number in the closure of a function on the block."""

    def build(self, block: Any, index: int) -> None:
        block.tick = _counter()

    def write(self, block: Any, hidden: Tensor) -> Any:
        return block.tick()


class ClassCount(Stateful):
    """A number on the class of the block, to which nothing in the block leads: it may be counted twice."""

    unjudged = frozenset({"class_calls"})

    def write(self, block: Any, hidden: Tensor) -> Any:
        type(block).class_calls = getattr(type(block), "class_calls", 0) + 1
        self.class_calls = type(block).class_calls
        return self.class_calls


class OutsideCount(Stateful):
    """A number outside the block, such as a global step."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.calls = 0

    def write(self, block: Any, hidden: Tensor) -> Any:
        self.calls += 1
        return self.calls


class OutsideLog(Stateful):
    """A list outside the block that every call appends to."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.log: list[Tensor] = []
        self.read = False

    def write(self, block: Any, hidden: Tensor) -> Any:
        self.log.append(hidden.detach().mean())


class LateState(Stateful):
    """State that is written from the third call of a block on."""

    def build(self, block: Any, index: int) -> None:
        block.before, block.late = 0, {"calls": 0}

    def write(self, block: Any, hidden: Tensor) -> Any:
        if block.before < 2:
            block.before += 1
        else:
            block.late["calls"] += 1
        return block.late["calls"]


class LazyTable(Stateful):
    """A table that the first call makes, and that stays."""

    def build(self, block: Any, index: int) -> None:
        block.lazy = None

    def write(self, block: Any, hidden: Tensor) -> Any:
        if block.lazy is None:
            block.lazy = torch.linspace(0, 1, hidden.shape[-1], dtype=hidden.dtype)
        return block.lazy


class KeptActivation(Stateful):
    """The hidden states of this call stay on the block, with their graph."""

    def write(self, block: Any, hidden: Tensor) -> Any:
        last = getattr(block, "kept", None)
        block.kept = hidden * 1
        return 0.0 if last is None else last.detach().mean()


class KeptInObject(Stateful):
    """The hidden states of this call stay in a list on the block, with their graph."""

    def build(self, block: Any, index: int) -> None:
        block.kept_list = []

    def write(self, block: Any, hidden: Tensor) -> Any:
        block.kept_list[:] = [hidden * 1]
        return 0.0


class Memory(Stateful):
    """A tensor made of this call's hidden states that the next call reads."""

    def build(self, block: Any, index: int) -> None:
        block.memory = torch.zeros(FEATURES)

    def write(self, block: Any, hidden: Tensor) -> Any:
        last = block.memory
        block.memory = hidden.detach().mean((0, 1))
        return last
