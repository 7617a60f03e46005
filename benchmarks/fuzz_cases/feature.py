"""The interface of a case's features: a part of the block, an argument of it, or something around it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

FEATURES = 8
"""The last dimension of the hidden states, of shape (batch, positions, features)."""
BATCH, POSITIONS, INPUTS = 2, 6, 4


class Feature:
    """One thing that a block, its arguments or the code around it does. One object serves one run of one case.

    A subclass overrides what it needs. What it keeps on itself is outside the block. The judge takes it for harmless
    where that differs, and for a fault where it is in `strict`; private attributes and those in `unjudged` are not
    compared. `rng`, and `_variant` drawn from it, decide between variants; it is seeded by the case and the feature's
    name, so that leaving out another feature changes nothing here. A feature that is not `live` yet does not `run`.
    """

    argument: ClassVar[str] = ""
    """The name of the block's parameter that the feature fills; empty where it needs none."""
    beside: ClassVar[tuple[str, ...]] = ()
    """Parameters that the block has beside it, and that nobody gives."""
    unjudged: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.strict: frozenset[str] = frozenset()
        self._variant = rng.random() < 0.5
        self.live = True
        self.of_transformers = False
        """Whether the class of the block passes for one of transformers."""

    def build(self, block: Any, index: int) -> None:
        """Give the block what the feature needs. `index` is its place in the stack."""

    def attach(self, model: Any) -> None:
        """Register hooks, or link blocks, once the model is built."""

    def inputs(self) -> dict[str, Any]:
        """Return what the caller gives the model beside its batch."""
        return {}

    def begin(self, model: Any) -> None:
        """Prepare one forward of the model."""

    def around(self) -> AbstractContextManager[Any]:
        """Return what the forward of the model, and not its backward, runs in."""
        return nullcontext()

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        """Return the argument that block `index` is given."""
        return None

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        """Return what the block does with its hidden states and with the argument."""
        return hidden

    def after_block(self, model: Any, hidden: Any, index: int) -> Any:
        """Return what the model does with the hidden states between blocks."""
        return hidden

    def added_loss(self) -> Tensor | None:
        """Make a term of the loss that comes from outside the block's outputs."""
        return None

    def after_forward(self, model: Any) -> None:
        """Do what happens between the forward and the backward."""

    def after_backward(self, model: Any) -> None:
        """Do what happens after a backward."""


class Output(Feature):
    """A form in which a block returns its hidden states, alone or beside other values."""

    def pack(self, block: Any, hidden: Tensor, given: Tensor) -> Any:
        """Return what the block returns. `given` are the hidden states that it got."""
        return hidden

    def unpack(self, result: Any) -> tuple[Tensor, list[Tensor]]:
        """Return the hidden states, and the other tensors that the model uses."""
        return result, []


Make = Callable[[], dict[str, Any]]
"""Makes the attributes of a block."""
Run = Callable[[Any, Any], Any]
"""Makes hidden states of a block and its hidden states."""


def parts(rows: Mapping[str, tuple[Make, Run]]) -> dict[str, type[Feature]]:
    """Features by name, each a row of a table: the attributes of the block, and what it does with them."""
    return {name: _part(name, make, run) for name, (make, run) in rows.items()}


def _part(name: str, make: Make, run: Run) -> type[Feature]:
    def build(feature: Feature, block: Any, index: int) -> None:
        for key, value in make().items():
            setattr(block, key, value)

    def run_part(feature: Feature, block: Any, hidden: Any, value: Any) -> Any:
        return run(block, hidden)

    return type(name, (Feature,), {"__doc__": name, "build": build, "run": run_part})


def of_kind(table: Mapping[str, type[Feature]], *more: type[Feature]) -> dict[str, type[Feature]]:
    """Return features by name: those of a table, and others."""
    return {**table, **{kind.__name__: kind for kind in more}}


def nothing() -> dict[str, Any]:
    """Return no attributes."""
    return {}


def linear() -> nn.Linear:
    """Make a layer from hidden states to hidden states."""
    return nn.Linear(FEATURES, FEATURES)


def scaled(hidden: Tensor, value: Any) -> Tensor:
    """Hidden states that depend a little on a number or a tensor, however large that is."""
    factor = torch.sin(torch.as_tensor(value, dtype=hidden.dtype))  # which goes on changing, where tanh ends at 1
    return hidden * (1 + 0.25 * factor)
