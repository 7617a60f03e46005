"""Features that are parts of a block: its layers, its state, what it draws, and what is done around its parts."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.checkpoint import checkpoint

from benchmarks.fuzz_cases.model import FEATURES, Feature, linear, named, scaled

Make = Callable[[], dict[str, Any]]
"""Makes the attributes of a block."""
Run = Callable[[Any, Any], Any]
"""Makes of a block and its hidden states other hidden states, or a number or small tensor."""


class Part(Feature):
    """A row of a table: the attributes of the block, and what it does with them."""

    make: ClassVar[Make]
    compute: ClassVar[Run]

    def build(self, block: Any, index: int) -> None:
        for key, value in type(self).make().items():
            setattr(block, key, value)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return type(self).compute(block, hidden)


class State(Part):
    """A row that writes something in every call; what it wrote changes the hidden states, or does not."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        state = type(self).compute(block, hidden)
        return scaled(hidden, state) if self._variant else hidden


def _rows(base: type[Part], rows: dict[str, tuple[Make, Run]]) -> dict[str, type[Feature]]:
    """Make a feature of each row of a table."""
    return {
        name: type(name, (base,), {"make": staticmethod(make), "compute": staticmethod(run)})
        for name, (make, run) in rows.items()
    }


class GrowingList(Feature):
    """A list that grows in every call: on the block, among its arguments, or in the code around it."""

    argument = "history"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._place = rng.choice(("block", "argument", "outside"))
        self.history: list[float] = []

    def build(self, block: Any, index: int) -> None:
        if self._place == "block":
            block.history = []

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return self.history if self._place == "argument" else None

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        history = block.history if self._place == "block" else self.history if value is None else value
        history.append(float(hidden.detach().mean()))
        return scaled(hidden, len(history)) if self._variant else hidden


class Unused(Feature):
    """A layer that only some calls use, so that its parameters have no gradient."""

    def build(self, block: Any, index: int) -> None:
        block.sometimes = linear()

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return hidden + torch.tanh(block.sometimes(hidden)) if self._variant else hidden


class Experts(Feature):
    """A router that sends each token to its best two experts, and moves their biases against the load or counts it."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.load: list[list[int]] = []

    def build(self, block: Any, index: int) -> None:
        block.router = nn.Linear(FEATURES, 4)
        block.experts = nn.ModuleList(linear() for _ in range(4))
        block.register_buffer("bias", torch.zeros(4))

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        tokens = hidden.reshape(-1, hidden.shape[-1])
        weights, chosen = torch.topk((block.router(tokens) + block.bias).softmax(-1), 2)
        load = chosen.reshape(-1).bincount(minlength=4)
        if self._variant:
            block.bias -= 0.2 * torch.sign(load - load.float().mean())
        else:
            self.load.append(load.tolist())
        result = torch.zeros_like(tokens)
        for number, expert in enumerate(block.experts):
            token, place = torch.where(chosen == number)
            change = torch.tanh(expert(tokens[token])) * weights[token, place, None]
            result = result.index_add(0, token, change.to(result.dtype))
        return hidden + result.view_as(hidden)


class TiedParts(Feature):
    """One layer shared by all blocks."""

    def attach(self, model: Any) -> None:
        for layer in model.layers:
            layer.up = model.layers[0].up


class SameBlockTwice(Feature):
    """The first block is also the last."""

    def attach(self, model: Any) -> None:
        model.layers.append(model.layers[0])


class Adapter(Feature):
    """A part of each block is frozen, beside an adapter of low rank that is trained, as LoRA has it."""

    def build(self, block: Any, index: int) -> None:
        block.up.requires_grad_(False)
        block.adapter = nn.Sequential(nn.Linear(FEATURES, 2, bias=False), nn.Linear(2, FEATURES, bias=False))

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return hidden + block.adapter(hidden)


class FrozenBlock(Feature):
    """The first block is frozen, with everything before it or without."""

    def attach(self, model: Any) -> None:
        model.layers[0].requires_grad_(False)
        if self._variant:
            model.embed.requires_grad_(False)


class AutocastAround(Feature):
    """The model's forward, without its backward, in bfloat16."""

    def around(self) -> AbstractContextManager[Any]:
        return torch.autocast("cpu", torch.bfloat16)


class ForwardHook(Feature):
    """A forward hook on the block or a part of it counts calls and changes what that returns."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.calls = 0

    def attach(self, model: Any) -> None:
        for layer in dict.fromkeys(model.layers):
            (layer.up if self._variant else layer).register_forward_hook(self._hook)

    def _hook(self, module: nn.Module, args: Any, output: Any) -> Any:
        self.calls += 1
        return output * 1.1 if isinstance(output, Tensor) else None


class BackwardHook(Feature):
    """A full backward hook scales the gradient, of the block or of a part."""

    def attach(self, model: Any) -> None:
        for layer in dict.fromkeys(model.layers):
            (layer.up if self._variant else layer).register_full_backward_hook(
                lambda module, inputs, outputs: tuple(g if g is None else g * 0.5 for g in inputs)
            )


def _attention(block: Any, hidden: Any) -> Any:
    query, key, values = block.project(hidden).chunk(3, dim=-1)
    return hidden + functional.scaled_dot_product_attention(query, key, values, is_causal=True)


def _count(block: Any, hidden: Tensor) -> Any:
    block.up.calls = getattr(block.up, "calls", 0) + 1
    return block.up.calls


def _move_average(block: Any, hidden: Tensor) -> Any:
    block.average = 0.9 * block.average + 0.1 * hidden.detach().mean((0, 1))
    return block.average


def _numpy_draw(block: Any, hidden: Any) -> Any:
    return scaled(hidden, torch.from_numpy(numpy.random.rand(hidden.shape[-1])).to(hidden.dtype))


def _in_place(block: Any, hidden: Any) -> Any:
    own = hidden * 1.1
    own.mul_(0.9).add_(0.01)
    own[:, 0] = own[:, 1]
    return functional.relu(own, inplace=True) - 0.1 * own


def _detached(block: Any, hidden: Any) -> Any:
    with torch.no_grad():
        target = block.detached(hidden)
    return hidden * torch.sigmoid(target) + hidden.detach()


def _inner() -> dict[str, Any]:
    return {"inner": nn.Sequential(linear(), nn.Tanh(), nn.Dropout(0.2))}


def _autocast(block: Any, hidden: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        low = torch.tanh(block.cast(hidden))
    return hidden + low.to(hidden.dtype)


_LAYERS: dict[str, tuple[Make, Run]] = {
    "SelfAttention": (lambda: {"project": nn.Linear(FEATURES, 3 * FEATURES)}, _attention),
    "LayerNorm": (lambda: {"norm": nn.LayerNorm(FEATURES)}, lambda block, hidden: block.norm(hidden)),
    "BatchNorm": (
        lambda: {"batch_norm": nn.BatchNorm1d(FEATURES)},
        lambda block, hidden: block.batch_norm(hidden.transpose(1, 2)).transpose(1, 2),
    ),
    "SpectralNorm": (
        lambda: {"spectral": spectral_norm(linear())},
        lambda block, hidden: hidden + torch.tanh(block.spectral(hidden)),
    ),
    "Dropout": (lambda: {"dropout": nn.Dropout(0.3)}, lambda block, hidden: block.dropout(hidden)),
}
_STATE: dict[str, tuple[Make, Run]] = {
    "CountAttribute": (dict, _count),
    "CountBuffer": (
        lambda: {"count": nn.Buffer(torch.zeros((), dtype=torch.long))},
        lambda block, hidden: block.count.add_(1),
    ),
    "MovingAverage": (lambda: {"average": nn.Buffer(torch.zeros(FEATURES))}, _move_average),
}
_DRAWS: dict[str, tuple[Make, Run]] = {
    "TorchNoise": (dict, lambda block, hidden: hidden * (1 + 0.3 * torch.rand_like(hidden))),
    "PythonDraw": (dict, lambda block, hidden: scaled(hidden, random.gauss(0, 1))),
    "LayerDrop": (dict, lambda block, hidden: torch.tanh(hidden) if random.random() < 0.5 else hidden),
    "NumpyDraw": (dict, _numpy_draw),
}
_GRAPH: dict[str, tuple[Make, Run]] = {
    "InPlace": (dict, _in_place),
    "InPlaceArgument": (dict, lambda block, hidden: hidden.add_(0.1)),
    "Detached": (lambda: {"detached": linear()}, _detached),
    "NestedCheckpoint": (_inner, lambda block, hidden: hidden + checkpoint(block.inner, hidden, use_reentrant=False)),
    "AutocastInside": (lambda: {"cast": linear()}, _autocast),
}

KINDS: dict[str, dict[str, type[Feature]]] = {
    "layers": {**_rows(Part, _LAYERS), **named(Unused, Experts)},
    "state": {**_rows(State, _STATE), **named(GrowingList)},
    "draws": _rows(Part, _DRAWS),
    "graph": {**_rows(Part, _GRAPH), **named(AutocastAround)},
    "weights": named(TiedParts, SameBlockTwice, Adapter, FrozenBlock),
    "hooks": named(ForwardHook, BackwardHook),
}
