"""Features that are tensors among the arguments of a block, alone and in containers."""

from __future__ import annotations

import random
from collections import UserDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.fuzz_cases.feature import FEATURES, Feature, scaled


class TensorArgument(Feature):
    """A tensor made of a layer of the model: with gradient."""

    argument = "residual"

    def attach(self, model: Any) -> None:
        model.other = nn.Linear(FEATURES, FEATURES)

    def begin(self, model: Any) -> None:
        self._first: Tensor | None = None

    def tensor(self, model: Any, hidden: Tensor) -> Tensor:
        """The tensor for this forward: the same for all blocks."""
        if self._first is None:
            self._first = torch.sin(model.other(hidden))
        return self._first

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return self.tensor(model, hidden)

    def tensors(self, value: Any) -> Iterable[Tensor]:
        """The tensors in the argument."""
        return [value]

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        for tensor in self.tensors(value):
            hidden = hidden * torch.cos(tensor)
        return hidden


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


class ContainedTensors(TensorArgument):
    """Two tensors, one of them or both with gradient, in a container."""

    argument = "streams"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.container = rng.choice(list(CONTAINERS))
        self.both = rng.random() < 0.5
        self.shared = rng.random() < 0.5

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        first = self.tensor(model, hidden)
        second = hidden * 0.5 if self.both else torch.ones_like(hidden)
        return CONTAINERS[self.container][0](first, hidden if self.shared and self.both else second)

    def tensors(self, value: Any) -> Iterable[Tensor]:
        return CONTAINERS[self.container][1](value)


class ConstantContainer(TensorArgument):
    """Tensors without gradient in a container."""

    argument = "tables"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.container = rng.choice(list(CONTAINERS))

    def attach(self, model: Any) -> None:
        """Nothing is needed."""

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        make = CONTAINERS[self.container][0]
        return make(torch.linspace(0, 1, hidden.shape[-1]), torch.full((1,), 0.5))

    def tensors(self, value: Any) -> Iterable[Tensor]:
        return CONTAINERS[self.container][1](value)


class SameTensorTwice(TensorArgument):
    """The hidden states once more, under another name."""

    argument = "first_hidden_states"

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return hidden


class Mask(Feature):
    """A mask of booleans, expanded over the batch."""

    argument = "attention_mask"

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return (torch.arange(hidden.shape[1]) % 3 > 0)[None, :, None].expand(hidden.shape[0], -1, 1)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return hidden.masked_fill(~value, 0.25)


class StrangeStrides(Feature):
    """Tensors of one element with strides other than 1."""

    argument = "scale"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.with_gradient = rng.random() < 0.5

    def attach(self, model: Any) -> None:
        model.scale = nn.Parameter(torch.ones(1))

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        source = model.scale.expand(9) * 1 if self.with_gradient else torch.ones(9)
        return source.as_strided((1, 1), (5, 3))

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return torch.sin(hidden * value)


class LearnedBias(Feature):
    """A parameter of the model, as an argument."""

    argument = "position_bias"

    def attach(self, model: Any) -> None:
        model.bias = nn.Parameter(torch.linspace(-1, 1, FEATURES))

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return model.bias

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return hidden * torch.sigmoid(value)


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


class DetachedArgument(TensorArgument):
    """A tensor that has no gradient although it is made of one that does."""

    argument = "target"

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return self.tensor(model, hidden).detach()


class IntegerArgument(Feature):
    """Indices of positions."""

    argument = "position_ids"

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return torch.arange(hidden.shape[1]).flip(0)[None]

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return hidden + 0.5 * hidden[:, value[0]]
