"""Features that are objects among the arguments of a block: holders, lists, functions."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.fuzz_cases.feature import Feature, linear, scaled


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


class HolderObject(Holder):
    """The same through an attribute of an object, which is an argument or one that all blocks hold."""

    def begin(self, model: Any) -> None:
        self.shared = SimpleNamespace(keys=None)
        for layer in model.layers:
            layer.holder = self.shared

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        holder = value if self._variant else block.holder
        before = holder.keys
        holder.keys = block.keys(hidden)
        return hidden * torch.cos(holder.keys if before is None else before)


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


class ChangedAfter(Feature):
    """An object of which a number changes after the forward."""

    argument = "context"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.context = SimpleNamespace(step=0)

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return self.context

    def after_forward(self, model: Any) -> None:
        self.context.step += 1

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return scaled(hidden, value.step)


class ChangedBetween(Feature):
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


class SwitchedAround(Feature):
    """A switch outside that is on in the forward of the model, and not in its backward."""

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
    """Tables that are made when they are first asked for: no cache, although the argument is called like one."""

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


class OutsideModule(Feature):
    """A module outside of the block keeps a tensor that the next call of a block reads."""

    def attach(self, model: Any) -> None:
        for layer in model.layers:
            object.__setattr__(layer, "recorder", [model.head])

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        last = getattr(block.recorder[0], "last", 0.0)
        block.recorder[0].last = hidden.detach().mean()
        return scaled(hidden, last)
