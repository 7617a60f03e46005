"""Training steps on small models, and all kinds of blocks that are hard to checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from ckpt_surgery.measure.loss import loss_of
from tests.measure.toys import WIDTH, Model, SureLayer, TwoStreams, values

Mode = Literal["non_reentrant", "reentrant"]
MODES: tuple[Mode, ...] = ("non_reentrant", "reentrant")
ONCE = (1, 1)
"""Entries of a block in forward and backward: checkpointed as it should be."""
both_modes = pytest.mark.parametrize("mode", MODES)
KEPT = (1, 0)
"""Entries of a block that is not checkpointed."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A forward and a backward: the results, and the entries into each block in both."""

    loss: float
    gradients: Mapping[str, Tensor | None]
    buffers: Mapping[str, Tensor]
    entries: Mapping[str, tuple[int, int]]


def step(
    model: nn.Module,
    inputs: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    loss: Callable[[Any], Tensor] = loss_of,
    blocks: Mapping[str, nn.Module] | None = None,
) -> Step:
    """Take a training step without optimizer, from no gradients and a seed, on `values()` by default.

    `blocks` are those of `model.layers` by default.
    """
    blocks = blocks_of(model) if blocks is None else blocks
    model.zero_grad()
    torch.manual_seed(seed)
    with counted(blocks) as entered:
        result = loss(model(**(values() if inputs is None else inputs)))
        forward = Counter(entered)
        torch.manual_seed(seed + 1)
        result.backward()  # type: ignore[no-untyped-call]
    return Step(
        float(result.detach()),
        {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()},
        {name: b.clone() for name, b in model.named_buffers()},
        {name: (forward[name], entered[name] - forward[name]) for name in blocks},
    )


def blocks_of(model: nn.Module) -> dict[str, nn.Module]:
    layers = model.get_submodule("layers")
    return dict(layers.named_children())


@contextmanager
def counted(blocks: Mapping[str, nn.Module]) -> Iterator[Counter[str]]:
    """Count a block's entries by those of its first module without children."""
    entered: Counter[str] = Counter()
    handles = [
        _first_leaf(block).register_forward_pre_hook(lambda *_, name=name: entered.update([name]))
        for name, block in blocks.items()
    ]
    try:
        yield entered
    finally:
        for handle in handles:
            handle.remove()


def _first_leaf(block: nn.Module) -> nn.Module:
    return next(part for part in block.modules() if not list(part.children()))


def differences(some: Step, others: Step, *, relative: float = 1e-9) -> list[str]:
    """Return "loss" and the names of gradients and buffers that differ by more than rounding."""
    differing = [] if _close(torch.tensor(some.loss), torch.tensor(others.loss), relative) else ["loss"]
    for ours, theirs in ((some.gradients, others.gradients), (some.buffers, others.buffers)):
        assert ours.keys() == theirs.keys()
        differing += [name for name in ours if not _close(ours[name], theirs[name], relative)]
    return differing


def _close(ours: Tensor | None, theirs: Tensor | None, relative: float) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    scale = theirs.double().abs().max().item() if theirs.numel() else 0.0
    return torch.allclose(ours.double(), theirs.double(), rtol=0, atol=relative * max(scale, 1e-6))


class ReturningLayer(SureLayer):
    """A layer that also returns a tensor it was given, as WavLM's layers do with their position bias."""

    def forward(self, hidden_states: Tensor, bias: Tensor | None = None) -> Any:
        assert bias is not None
        return torch.tanh(self.linear(hidden_states) + bias), bias


class Returned(TwoStreams):
    def forward(self, values: Tensor) -> Any:
        hidden_states, bias = self.first(values), self.side(values)
        for layer in self.layers:
            hidden_states, bias = layer(hidden_states, bias=bias)
        return self.last(hidden_states + bias)


class DictLayer(SureLayer):
    """A layer that takes everything in a dictionary, a dataclass, or anything else with named parts."""

    def forward(self, states: Any) -> Any:
        first, (second, scale) = (
            (states["hidden"], states["others"]) if isinstance(states, Mapping) else (states.hidden, states.others)
        )
        return torch.tanh(self.linear(first) + second * scale)


@dataclass
class States:
    hidden: Tensor
    others: tuple[Tensor, float]


class Handle:
    """A container of an unknown class."""

    def __init__(self, **contents: Any) -> None:
        vars(self).update(contents)


class OneArgument(TwoStreams):
    """A model that passes its blocks one object with all tensors."""

    make: Callable[..., Any]

    def forward(self, values: Tensor) -> Any:
        hidden_states, residual = self.first(values), self.side(values)
        for layer in self.layers:
            hidden_states = layer(type(self).make(hidden=hidden_states, others=(residual, 0.5)))
        return self.last(hidden_states)


class InADict(OneArgument):
    make = dict


class InADataclass(OneArgument):
    make = States


class InAnObject(OneArgument):
    make = Handle


class Router(nn.Linear):
    """A router whose outputs a hook collects."""


class HookedLayer(SureLayer):
    """A layer whose router's outputs only hooks use."""

    def __init__(self) -> None:
        super().__init__()
        self.router = Router(WIDTH, WIDTH)

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden: Tensor = torch.tanh(self.linear(hidden_states))
        return hidden + torch.sigmoid(self.router(torch.sin(hidden)))


class Collecting(Model):
    """A model that adds a loss of what hooks collect on routers: outputs or, with `inputs`, arguments."""

    inputs = False

    def forward(self, values: Tensor) -> Any:
        tensors: list[Tensor] = []
        handles = [
            module.register_forward_hook(lambda _, args, out: tensors.append(args[0] if self.inputs else out))
            for module in self.modules()
            if isinstance(module, Router)
        ]
        result = super().forward(values)
        for handle in handles:
            handle.remove()
        return {"loss": result.sum() + torch.stack(tensors).square().sum()}


class CollectingInputs(Collecting):
    inputs = True


class NormedLayer(SureLayer):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(self.norm(hidden_states))


class SpectralLayer(SureLayer):
    """A layer whose weight's norm is iterated in every forward, on buffers."""

    def __init__(self) -> None:
        super().__init__()
        spectral_norm(self.linear)


class ListLayer(SureLayer):
    """A layer that reads the whole list of earlier results, and appends its own."""

    def forward(self, hidden_states: Tensor, earlier: list[Tensor] | None = None) -> Tensor:
        assert earlier is not None
        hidden = torch.tanh(self.linear(hidden_states) + sum(earlier, torch.zeros(())))
        earlier.append(torch.sin(hidden))
        return hidden


class SharedList(Model):
    def run_layers(self, hidden_states: Tensor) -> Tensor:
        earlier: list[Tensor] = []
        for layer in self.layers:
            hidden_states = layer(hidden_states, earlier)
        return hidden_states + sum(earlier, torch.zeros(()))


class ObjectLayer(SureLayer):
    """A layer that reads the previous block's entry on a shared object, and leaves its own."""

    def forward(self, hidden_states: Tensor, shared: Any = None) -> Tensor:
        hidden = torch.tanh(self.linear(hidden_states) + shared.last)
        shared.last = torch.sin(hidden)
        return hidden


class SharedObject(Model):
    def run_layers(self, hidden_states: Tensor) -> Tensor:
        shared = Handle(last=torch.zeros(()))
        for layer in self.layers:
            hidden_states = layer(hidden_states, shared)
        return hidden_states


class WritingOverLayer(SureLayer):
    """A layer that overwrites its hidden states."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states += torch.sin(self.linear(hidden_states))
        return torch.exp(hidden_states)


class MaskLayer(SureLayer):
    """A layer that overwrites a mask, which needs no gradient."""

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None) -> Tensor:
        assert mask is not None
        mask += 1
        return torch.tanh(self.linear(hidden_states) + mask)


class Masked(Model):
    def run_layers(self, hidden_states: Tensor) -> Tensor:
        mask = torch.zeros(WIDTH, dtype=hidden_states.dtype)
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask=mask)
        return hidden_states
