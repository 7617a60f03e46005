"""Blocks that return views, keep tensors, draw, count and make tables, and models that use their results."""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict, deque
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.measure import toys
from tests.measure.toys import WIDTH, Model, SureLayer


class RowsLayer(SureLayer):
    """A layer that also returns part of its input."""

    def forward(self, hidden_states: Tensor) -> Any:
        return super().forward(hidden_states), hidden_states[:, 1:]


class FlatLayer(SureLayer):
    """A layer that also returns its input in another shape."""

    def forward(self, hidden_states: Tensor) -> Any:
        return super().forward(hidden_states), hidden_states.view(-1)


class WeightLayer(SureLayer):
    """A layer that also returns part of its weight."""

    def forward(self, hidden_states: Tensor) -> Any:
        return super().forward(hidden_states), self.linear.weight[1:]


class ComplexLayer(SureLayer):
    """A layer that also returns complex numbers."""

    def forward(self, hidden_states: Tensor) -> Any:
        hidden = super().forward(hidden_states)
        return hidden, torch.complex(hidden, torch.cos(hidden))


class SecondsInTurn(Model):
    """A model that uses both results of its blocks, whatever the second one's shape."""

    cut = False

    def run_layers(self, hidden_states: Tensor) -> Tensor:
        for layer in self.layers:
            hidden_states, second = layer(hidden_states)
            hidden_states = hidden_states * (second.detach() if self.cut else second).abs().square().mean()
        return hidden_states


class WithoutSeconds(SecondsInTurn):
    """A model that loses the gradient of the second results."""

    cut = True


class KeepingLayer(SureLayer):
    """A layer that keeps a tensor with gradient that nobody uses."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden = super().forward(hidden_states)
        self.last = torch.exp(hidden)
        return hidden


class UsingLayer(SureLayer):
    """A layer that goes on with a tensor that it keeps."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        self.last = super().forward(hidden_states)
        return torch.sin(self.last)


class WindowLayer(SureLayer):
    """A layer that keeps a detached part of its result: a view that claims a gradient."""

    window: Tensor

    def forward(self, hidden_states: Tensor) -> Tensor:
        result = super().forward(hidden_states)
        with torch.no_grad():
            self.window = result[:, 1:]
        return result + self.window.mean()


class WeightNormLayer(SureLayer):
    """A layer that sets its weight anew in every forward, as an attribute with gradient."""

    def __init__(self) -> None:
        super().__init__()
        nn.utils.weight_norm(self.linear)


class SpectralNormLayer(SureLayer):
    """A layer that does that too, and iterates on a buffer."""

    def __init__(self) -> None:
        super().__init__()
        nn.utils.spectral_norm(self.linear)


class LiteralLayer(SureLayer):
    """A layer whose dropout rate is a literal in its forward."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return functional.dropout(super().forward(hidden_states), 0.3, self.training)


class NoisyLayer(SureLayer):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states + torch.rand_like(hidden_states))


class RaisedLayer(toys.Layer):
    """A layer that drops nothing until its rate is raised."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout.p = 0.0


class AverageLayer(SureLayer):
    """A layer that updates a buffer in every second step only."""

    average: Tensor
    number: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.ones(WIDTH))
        self.register_buffer("number", torch.zeros((), dtype=torch.long))

    def forward(self, hidden_states: Tensor) -> Tensor:
        self.number += 1
        if self.number % 2 == 0:
            self.average.mul_(0.5)
        return super().forward(hidden_states)


class TallyLayer(SureLayer):
    """A layer that counts its calls in containers, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.counter: Counter[str] = Counter()
        self.queue: deque[int] = deque(maxlen=5)
        self.numbers: defaultdict[str, int] = defaultdict(int)

    def forward(self, hidden_states: Tensor) -> Tensor:
        self.counter["calls"] += 1
        self.queue.append(len(self.queue))
        self.numbers["calls"] += 1
        return super().forward(hidden_states)


class TableLayer(SureLayer):
    """A layer that makes a table at its first call, as rotary embeddings do."""

    def __init__(self) -> None:
        super().__init__()
        self.table: Tensor | None = None

    def forward(self, hidden_states: Tensor) -> Tensor:
        if self.table is None:
            self.table = self.made(hidden_states)
        return super().forward(hidden_states * self.table)

    def made(self, hidden_states: Tensor) -> Tensor:
        return torch.outer(torch.arange(hidden_states.shape[0]), torch.linspace(0.0, 1.0, WIDTH)).cos()


class TupleLayer(SureLayer):
    """A layer that takes both tensors in one container."""

    def forward(self, states: Any) -> Any:
        hidden_states, other = states
        return super().forward(hidden_states) + other, torch.cos(other)


class Containers(Model):
    """A model that passes its blocks two new tensors in a container; `others` shares the second ones' memory."""

    kind: type[Any] = tuple

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.others: list[weakref.ref[Any]] = []

    def run_layers(self, hidden_states: Tensor) -> Tensor:
        self.others.clear()
        other = hidden_states + 1
        for layer in self.layers:
            self.others.append(weakref.ref(other.untyped_storage()))
            hidden_states, other = layer(self.kind([hidden_states, other]))
        return hidden_states + other


class InLists(Containers):
    kind = list
