"""Features that are tensors among the arguments of a block, alone and in containers."""

from __future__ import annotations

import random
from collections import UserDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.fuzz_cases.feature import FEATURES, Feature, linear, scaled


class Point(NamedTuple):
    """Two tensors with names."""

    x: Tensor
    y: Tensor


@dataclass
class Streams:
    """Tensors in a dataclass, with something else."""

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
        """The tensor for this forward."""
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


class WrittenAfter(Feature):
    """A tensor without gradient that is written after the forward, as a buffer of inputs is."""

    argument = "inputs_buffer"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.through_data = rng.random() < 0.5

    def begin(self, model: Any) -> None:
        self.given = torch.linspace(0, 1, FEATURES)

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return self.given

    def after_forward(self, model: Any) -> None:
        (self.given.data if self.through_data else self.given).zero_()

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return torch.sin(hidden + value)
