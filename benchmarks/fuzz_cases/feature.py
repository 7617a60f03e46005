"""What a feature of a case can do: a part of the block, an argument of it, or something around it."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

FEATURES = 8
"""The last dimension of the hidden states, of shape (batch, positions, features)."""
BATCH, POSITIONS, INPUTS = 2, 6, 4


class Feature:
    """One thing that a block, its arguments or the code around it does. One object serves one run of one case.

    A subclass overrides what it needs. What it keeps on itself is outside the block: the judge compares that too,
    except for private attributes and those named in `unjudged`. `rng`, and `_variant` drawn from it, decide between
    variants; it is seeded by the case and the feature's name, so that leaving out another feature changes nothing
    here.
    """

    argument: ClassVar[str] = ""
    """The name of the block's parameter that the feature fills; empty where it needs none."""
    unjudged: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._variant = rng.random() < 0.5

    def build(self, block: nn.Module, index: int) -> None:
        """Give the block what the feature needs. `index` is its place in the stack."""

    def attach(self, model: nn.Module) -> None:
        """Register hooks, or link blocks, once the model is built."""

    def begin(self, model: nn.Module) -> None:
        """Prepare one forward of the model."""

    def around(self) -> AbstractContextManager[Any]:
        """What the forward of the model, and not its backward, runs in."""
        return nullcontext()

    def value(self, model: nn.Module, hidden: Tensor, index: int) -> Any:
        """The argument that block `index` is given."""
        return None

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        """What the block does with its hidden states and with the argument."""
        return hidden

    def after_block(self, model: Any, hidden: Any, index: int) -> Any:
        """What the model does with the hidden states between blocks."""
        return hidden

    def added_loss(self) -> Tensor | None:
        """A term of the loss that comes from outside the block's outputs."""
        return None

    def after_forward(self, model: nn.Module) -> None:
        """What happens between the forward and the backward."""


class Output(Feature):
    """A form in which a block returns its hidden states, alone or beside other values."""

    def pack(self, block: Any, hidden: Tensor, given: Tensor) -> Any:
        """What the block returns. `given` are the hidden states that it got."""
        return hidden

    def unpack(self, result: Any) -> tuple[Tensor, list[Tensor]]:
        """The hidden states, and the other tensors that the model uses."""
        return result, []


def scaled(hidden: Tensor, value: Any) -> Tensor:
    """Hidden states that depend a little on a number or a tensor, however large that is."""
    factor = torch.tanh(torch.as_tensor(value, dtype=hidden.dtype))
    return hidden * (1 + 0.25 * factor)
