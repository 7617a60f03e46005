"""Blocks that read and write what checkpointing does not see: generators, objects, holders, parameters, and drift.

Each block scales its hidden states by what it reads, so that a recompute which reads something else has wrong
gradients.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH = 6
LOG: list[float] = []
"""What `LoggingBlock` writes, outside of every model."""


class ScalingBlock(nn.Module):
    """A residual block whose input is scaled by `scale()`."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)
        self.down = nn.Linear(WIDTH, WIDTH)

    def scale(self) -> Any:
        """Return the factor that the block reads in this call."""
        return 1.0

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = hidden + torch.tanh(self.down(torch.tanh(self.up(hidden * self.scale()))))
        return result


class PythonBlock(ScalingBlock):
    def scale(self) -> Any:
        return random.random()


class NumpyBlock(ScalingBlock):
    def scale(self) -> Any:
        return float(numpy.random.rand())


class OwnGeneratorsBlock(ScalingBlock):
    """A block with private generators, one of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.torch = torch.Generator().manual_seed(0)
        self.sources: dict[str, Any] = {"numpy": numpy.random.default_rng(0), "python": random.Random(0)}

    def scale(self) -> Any:
        drawn = self.sources["numpy"].random() + self.sources["python"].random()
        return torch.rand(1, generator=self.torch) + drawn


class NestedStateBlock(ScalingBlock):
    """A block that counts in a nested object, in a tuple of tensors, and in a numpy array."""

    def __init__(self) -> None:
        super().__init__()
        self.nested = {"inner": [SimpleNamespace(count=0)]}
        self.pair = (torch.zeros(1), "name")
        self.array = numpy.zeros(2)

    def scale(self) -> Any:
        self.nested["inner"][0].count += 1
        self.pair[0].add_(1)
        self.array += 1
        return 1 + 0.1 * (self.nested["inner"][0].count + float(self.pair[0]) + float(self.array[0]))


class IteratorBlock(ScalingBlock):
    def __init__(self) -> None:
        super().__init__()
        self.numbers: Iterator[int] = itertools.cycle([1, 2, 3])

    def scale(self) -> Any:
        return next(self.numbers)


class LoggingBlock(ScalingBlock):
    """A block that writes into a list of its Python module, and reads its length."""

    def scale(self) -> Any:
        LOG.append(1.0)
        return 1 + 0.1 * len(LOG)


class CodebookBlock(ScalingBlock):
    """A block that moves a frozen parameter, as a codebook or a momentum encoder does."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.ones(WIDTH), requires_grad=False)

    def scale(self) -> Any:
        with torch.no_grad():
            self.codes.mul_(0.9)
        return self.codes.clone()


class EnergyBlock(ScalingBlock):
    """A block that takes a gradient through a batch norm that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        with torch.enable_grad():
            point = hidden if hidden.requires_grad else hidden.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.norm(point).square().sum(), point, create_graph=True)
        return super().forward(hidden - 0.1 * slope)


class LazyBlock(ScalingBlock):
    """A block that makes one of its layers in its first forward."""

    def __init__(self) -> None:
        super().__init__()
        self.late: nn.Module | None = None

    def scale(self) -> Any:
        if self.late is None:
            self.late = nn.Linear(1, WIDTH)
        return self.late(torch.ones(1))


class AverageBlock(ScalingBlock):
    """A block with an average of `size` elements in a buffer, which `update` writes or replaces."""

    average: Tensor

    def __init__(self, update: Callable[[AverageBlock], object], size: int = 1) -> None:
        super().__init__()
        self.register_buffer("average", torch.ones(size))
        self.update = update

    def scale(self) -> Any:
        with torch.no_grad():
            self.update(self)
        return self.average[0].clone()


class CountingBlock(ScalingBlock):
    """A block that counts in its own and a submodule's attribute, and puts a tensor on itself."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        vars(self.down)["calls"] = 0

    def scale(self) -> Any:
        self.calls += 1
        vars(self.down)["calls"] += 2
        self.last = torch.full((WIDTH,), 0.1) + getattr(self, "last", 0.0)
        return 1 + 0.1 * (self.calls + vars(self.down)["calls"]) + self.last


class FollowingBlock(ScalingBlock):
    """A block whose frozen weight follows a trained one, as in a momentum encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.followed = nn.Parameter(torch.ones(WIDTH), requires_grad=False)

    def scale(self) -> Any:
        with torch.no_grad():
            self.followed.lerp_(self.up.bias, 0.3)
        return self.followed.clone()


class ScriptedBlock(ScalingBlock):
    """A block with a scripted part."""

    def __init__(self) -> None:
        super().__init__()
        self.scripted = torch.jit.script(nn.Linear(WIDTH, WIDTH))

    def scale(self) -> Any:
        return self.scripted(torch.ones(WIDTH))


class CompiledPartBlock(ScalingBlock):
    """A block with a compiled part."""

    def __init__(self) -> None:
        super().__init__()
        self.part = torch.compile(lambda hidden: torch.sin(hidden) * torch.sigmoid(hidden), backend="aot_eager")

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = self.part(super().forward(hidden))
        return result


class LazySizeBlock(ScalingBlock):
    """A block with a layer whose size the first forward decides."""

    def __init__(self) -> None:
        super().__init__()
        self.late = nn.LazyLinear(WIDTH)

    def scale(self) -> Any:
        return self.late(torch.ones(WIDTH))


class KeyCache:
    """Keys by layer, with the interface of a cache of transformers."""

    def __init__(self) -> None:
        self.layers: dict[int, Tensor] = {}

    def get_seq_length(self, layer: int = 0) -> int:
        return len(self.layers[layer]) if layer in self.layers else 0


class CachingBlock(ScalingBlock):
    """A block that writes its keys into a cache, and reads those of the block before."""

    def __init__(self, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx

    def forward(self, hidden: Tensor, past_key_values: KeyCache | None = None) -> Tensor:
        keys = torch.sin(self.up(hidden))
        if past_key_values is not None:
            past_key_values.layers[self.layer_idx] = keys
            keys = past_key_values.layers.get(self.layer_idx - 1, keys)
        return super().forward(hidden) * torch.cos(keys)


class SharingBlock(ScalingBlock):
    """A block that reads the previous block's entry in a holder, and leaves its own."""

    def __init__(self, holder: dict[str, Tensor]) -> None:
        super().__init__()
        self.holder = holder

    def scale(self) -> Any:
        keys = self.holder.get("keys", torch.ones(WIDTH))
        self.holder["keys"] = (keys * 0.5 + self.up.weight.detach().mean(0)).clone()
        return keys


class Clock:
    """A count in memory that nobody looks into."""

    def __init__(self) -> None:
        self._count = memoryview(bytearray(8)).cast("q")

    def tick(self) -> int:
        self._count[0] += 1
        return self._count[0]


class DriftingBlock(ScalingBlock):
    """A block that reads a clock which cannot be put back."""

    def __init__(self, size: float = 0.1) -> None:
        super().__init__()
        self.size = size
        self.clock = Clock()

    def scale(self) -> Any:
        return 1 + self.size * self.clock.tick()


class RoundedDriftBlock(ScalingBlock):
    """A block that drifts a little before rounding, with the identity's gradient: its results stay the same."""

    def __init__(self, size: float = 1e-3) -> None:
        super().__init__()
        self.size = size
        self.clock = Clock()

    def forward(self, hidden: Tensor) -> Tensor:
        drifted = super().forward(hidden) * (1 + self.size * self.clock.tick())
        return drifted + (drifted.round() - drifted).detach()


class NoisyBlock(ScalingBlock):
    """A block that is off by about a rounding error, or more, in each call, like kernels without a fixed order.

    Multiples of the golden ratio lie far from each other: no two calls of a test are off by nearly the same.
    """

    calls = itertools.count()

    def __init__(self, size: float) -> None:
        super().__init__()
        self.size = size

    def scale(self) -> Any:
        return 1 + self.size * (next(self.calls) * 0.6180339887498949 % 1 - 0.5)


class RoutingBlock(nn.Module):
    """A router and its experts. `drift` is added to the router's logits anew in each call."""

    def __init__(self, drift: float = 0.0, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, experts)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(experts))
        self.drift = drift
        self.clock = Clock()

    def forward(self, hidden: Tensor) -> Tensor:
        logits = self.router(hidden) + self.drift * self.clock.tick() * torch.arange(float(len(self.experts)))
        weights, chosen = torch.topk(torch.softmax(logits, -1), 1)
        result = hidden
        for number, expert in enumerate(self.experts):
            rows, _ = torch.where(chosen == number)
            result = result.index_add(0, rows, torch.tanh(expert(hidden[rows])) * weights[rows])
        return result


class _Twice(torch.autograd.Function):
    """A square whose backward reads the saved tensor twice."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return values.square()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * (ctx.saved_tensors[0] + ctx.saved_tensors[0])


class ReadingTwiceBlock(ScalingBlock):
    """A block with a function that reads its saved tensors twice."""

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = _Twice.apply(super().forward(hidden))  # type: ignore[no-untyped-call]
        return result


class Stack(nn.Module):
    """A stack of blocks between two layers; it returns a loss."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(blocks)
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, values: Tensor) -> Tensor:
        hidden = self.first(values)
        for layer in self.layers:
            hidden = self.run(layer, hidden)
        loss: Tensor = self.last(hidden).square().mean()
        return loss

    def run(self, layer: nn.Module, hidden: Tensor) -> Tensor:
        result: Tensor = layer(hidden)
        return result


class CachingStack(Stack):
    """A stack that gives its blocks a cache."""

    def forward(self, values: Tensor) -> Tensor:
        self.cache = KeyCache()
        return super().forward(values)

    def run(self, layer: nn.Module, hidden: Tensor) -> Tensor:
        result: Tensor = layer(hidden, past_key_values=self.cache)
        return result


Make = Callable[[], list[nn.Module]]
"""A function that makes the blocks of a stack."""


def two(kind: Callable[[], nn.Module]) -> Make:
    """Build two blocks of a kind."""
    return lambda: [kind(), kind()]


def stack(make: Make) -> Stack:
    """Build a stack with the same weights each time, and with nothing counted outside of it."""
    torch.manual_seed(0)
    LOG.clear()
    return Stack(make())


def train(model: nn.Module, steps: int = 2) -> list[Any]:
    """Train a few steps; return losses, gradients and the final state: buffers, and the generators' next numbers."""
    for seed in (torch.manual_seed, random.seed, numpy.random.seed):
        seed(1)
    results: list[Any] = []
    for number in range(steps):
        model.zero_grad()
        loss = model(torch.linspace(-1, 1 + number, 16 * WIDTH).view(16, WIDTH))
        loss.backward()
        results += [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
    drawn = [torch.tensor(random.random()), torch.tensor(numpy.random.rand()), torch.rand(1)]
    return [*results, *(b.clone() for b in model.buffers()), *drawn]


def same(ours: list[Any], theirs: list[Any]) -> bool:
    """Tell whether two trainings gave the same."""
    return len(ours) == len(theirs) and all(
        torch.allclose(a.double(), b.double(), rtol=0, atol=1e-6) for a, b in zip(ours, theirs, strict=True)
    )


def checkpoint_natively(model: Stack) -> None:
    """Checkpoint the blocks of a stack with torch's own checkpointing."""
    for layer in model.layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
