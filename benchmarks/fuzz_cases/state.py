"""Features that write what a recompute starts from: buffers, tensors and attributes of modules of the block."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.fuzz_cases.feature import FEATURES, Feature, Make, nothing, scaled


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
    """A number on the block, or on a submodule, where it is not there before the first call."""

    def write(self, block: Any, hidden: Tensor) -> Any:
        module = block if self._variant else block.up
        module.calls = getattr(module, "calls", 0) + 1
        return module.calls


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


class Pair(NamedTuple):
    """State that is replaced."""

    calls: int
    last: float


def _fill_bank(block: Any, hidden: Tensor) -> Tensor:
    block.bank[block.pointer] = hidden.detach().mean((0, 1))
    block.pointer = (block.pointer + 1) % 4
    filled: Tensor = block.bank.sum(0)
    return filled


def _replace_pair(block: Any, hidden: Tensor) -> int:
    block.pair_state = Pair(block.pair_state.calls + 1, float(hidden.detach().mean()))
    calls: int = block.pair_state.calls
    return calls


def _replace_function(block: Any, hidden: Tensor) -> float:
    gain: float = block.gain()
    block.gain = functools.partial(float, gain + 1)
    return gain


def _count_late(block: Any, hidden: Tensor) -> int:
    block.late_calls += 1
    calls: int = block.late_calls
    return max(calls - 2, 0)


def _make_table(block: Any, hidden: Tensor) -> Any:
    if block.lazy is None:
        block.lazy = torch.linspace(0, 1, hidden.shape[-1], dtype=hidden.dtype)
    return block.lazy


def _keep(block: Any, hidden: Tensor) -> Any:
    last = getattr(block, "kept", None)
    block.kept = hidden * 1
    return 0.0 if last is None else last.detach().mean()


def _remember(block: Any, hidden: Tensor) -> Any:
    last, block.memory = block.memory, hidden.detach().mean((0, 1))
    return last


_ROWS: dict[str, tuple[Make, Callable[[Any, Tensor], Any]]] = {
    "TensorAttribute": (lambda: {"bank": torch.zeros(4, FEATURES), "pointer": 0}, _fill_bank),
    "ReplacedTuple": (lambda: {"pair_state": Pair(0, 0.0)}, _replace_pair),
    "ReplacedFunction": (lambda: {"gain": functools.partial(float, 1)}, _replace_function),
    "LateState": (lambda: {"late_calls": 0}, _count_late),
    "LazyTable": (lambda: {"lazy": None}, _make_table),
    "KeptActivation": (nothing, _keep),
    "Memory": (lambda: {"memory": torch.zeros(FEATURES)}, _remember),
}


def _row(name: str, make: Make, write: Callable[[Any, Tensor], Any]) -> type[Stateful]:
    def build(feature: Feature, block: Any, index: int) -> None:
        vars(block).update(make())

    attributes = {"__doc__": name, "build": build, "write": lambda feature, block, hidden: write(block, hidden)}
    return type(name, (Stateful,), attributes)


TABLE = {name: _row(name, *row) for name, row in _ROWS.items()}


class LazyLayer(Feature):
    """A layer whose parameters are made in the first call."""

    def build(self, block: Any, index: int) -> None:
        block.lazy_layer = None

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        if block.lazy_layer is None:
            block.lazy_layer = nn.Linear(FEATURES, FEATURES, bias=False)
            nn.init.eye_(block.lazy_layer.weight)
        return torch.sin(block.lazy_layer(hidden))
