"""Features that write what no recompute puts back: harmless where nothing reads it, and refused where that shows.

Each row of the table is an object, and how a call counts on it or draws from it. The object is an attribute of the
block, an argument, or outside.
"""

from __future__ import annotations

import array
import itertools
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy
import torch
from torch import Tensor

from benchmarks.fuzz_cases.feature import FEATURES, scaled
from benchmarks.fuzz_cases.state import Stateful

PLACES = ("block", "argument", "outside", "class")


class _Elsewhere(Stateful):
    """An object of a row of the table, at one of the places."""

    make: ClassVar[Callable[[], Any]]
    count: ClassVar[Callable[[Any, Tensor], Any]]

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._place = rng.choice(PLACES)
        self.state = type(self).make()

    def attach(self, model: Any) -> None:
        for layer in model.layers:
            if self._place == "block":
                setattr(layer, self.argument, type(self).make())
            elif self._place == "class":
                setattr(type(layer), self.argument, self.state)

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return self.state if self._place == "argument" else None

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        if self._place != "argument":
            value = self.state if self._place == "outside" else getattr(block, self.argument)
        count = type(self).count(value, hidden)
        return scaled(hidden, count) if self.read else hidden


def _counter() -> Callable[[], int]:
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return count

    return tick


def _count_namespace(space: Any, hidden: Tensor) -> int:
    space.a[0]["c"].count += 1
    count: int = space.a[0]["c"].count
    return count


def _count_many(containers: Any, hidden: Tensor) -> int:
    recent, seen, kinds, groups, raw = containers
    recent.append(len(recent))
    seen.add(len(seen))
    kinds["calls"] += 1
    groups["a"].append(1)
    raw[0] += 1
    count: int = kinds["calls"]
    return count


def _count_list(values: list[Any], hidden: Tensor) -> int:
    values.append(float(hidden.detach().mean()))
    return len(values)


def _average(averages: dict[str, Tensor], hidden: Tensor) -> Tensor:
    averages["mean"] = 0.5 * averages["mean"] + hidden.detach().mean((0, 1))
    return averages["mean"]


def _keep(kept: list[Tensor], hidden: Tensor) -> float:
    kept[:] = [hidden * 1]
    return 0.0


_ROWS: dict[str, tuple[Callable[[], Any], Callable[[Any, Tensor], Any]]] = {
    "Namespaces": (lambda: SimpleNamespace(a=[{"c": SimpleNamespace(count=0)}]), _count_namespace),
    "CountingIterator": (lambda: itertools.count(1), lambda state, hidden: next(state)),
    "ZippedIterator": (lambda: zip(range(1, 9999), range(9999), strict=False), lambda state, hidden: next(state)[0]),
    "PythonGenerator": (lambda: (number for number in range(9999)), lambda state, hidden: next(state)),
    "ClosureCount": (_counter, lambda state, hidden: state()),
    "Containers": (lambda: (deque([0], 2), {0}, Counter(calls=0), defaultdict(list), bytearray(1)), _count_many),
    "GrowingList": (list, _count_list),
    "PlainArray": (lambda: array.array("d", [0.0]), lambda state, hidden: state.append(0.0) or len(state)),
    "NumpyArray": (lambda: numpy.zeros(2), lambda state, hidden: float(state.__iadd__(1)[0])),
    "TensorInTuple": (lambda: (torch.zeros(1), "name"), lambda state, hidden: state[0].add_(1)),
    "TensorsInDict": (lambda: {"mean": torch.zeros(FEATURES)}, _average),
    "KeptInList": (list, _keep),
    "OwnTorchGenerator": (
        lambda: torch.Generator().manual_seed(7),
        lambda state, hidden: torch.rand((), generator=state),
    ),
    "OwnNumpyGenerator": (lambda: numpy.random.default_rng(7), lambda state, hidden: float(state.normal())),
    "OwnPythonGenerator": (lambda: random.Random(7), lambda state, hidden: state.random()),
    "GeneratorInList": (lambda: [random.Random(7)], lambda state, hidden: state[0].random()),
}
TABLE: dict[str, type[_Elsewhere]] = {
    name: type(
        name,
        (_Elsewhere,),
        {"__doc__": name, "argument": f"held_{name}", "make": staticmethod(make), "count": staticmethod(count)},
    )
    for name, (make, count) in _ROWS.items()
}
