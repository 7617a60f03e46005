"""The model of a case, a stack of blocks, and what a feature of a block or of the code around it can do."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

WIDTH = 16
"""The last dimension of the hidden states, of shape (batch, positions, width)."""
BATCH, POSITIONS, INPUTS = 4, 6, 4
PARAMETERS = ("streams", "shared", "collected", "past_key_values")
"""The parameters of a block behind its hidden states."""


class Feature:
    """One thing that a block, its arguments or the code around it does. One object serves one training.

    A subclass overrides what it needs. `variant` decides between two forms of it.
    """

    argument: ClassVar[str] = ""
    """The block's parameter that the feature fills."""
    given: Any = None
    """The argument, where it is the same for all blocks."""
    autocast: ClassVar[bool] = False
    """Whether the forward of the model, and not its backward, runs in bfloat16."""
    in_tuple: ClassVar[bool] = False
    """Whether a block returns its hidden states in a tuple, beside nothing and another tensor."""

    def __init__(self, rng: random.Random) -> None:
        self.variant = rng.random() < 0.5

    def build(self, block: Any, index: int) -> None:
        """Give the block what the feature needs. `index` is its place in the stack."""

    def attach(self, model: Any) -> None:
        """Register hooks, or link blocks, once the model is built."""

    def begin(self, model: Any) -> None:
        """Prepare one forward of the model."""

    def value(self, model: Any, hidden: Tensor) -> Any:
        """Return the argument that a block is given."""
        return self.given

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        """Return what the block does with its hidden states and with the argument."""
        return hidden

    def added_loss(self, model: Any) -> Tensor | None:
        """Make a term of the loss that comes from outside the blocks' results."""
        return None


class FuzzBlock(nn.Module):
    """A residual block with the features of a case."""

    features: ClassVar[Sequence[Feature]] = ()

    def __init__(self, index: int) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)
        self.down = nn.Linear(WIDTH, WIDTH)
        for feature in self.features:
            feature.build(self, index)

    def forward(
        self,
        hidden_states: Tensor,
        streams: Any = None,
        shared: Any = None,
        collected: Any = None,
        past_key_values: Any = None,
    ) -> Any:
        """Run the features, and the layers of every block."""
        given = {"streams": streams, "shared": shared, "collected": collected, "past_key_values": past_key_values}
        hidden = hidden_states
        for feature in self.features:
            hidden = feature.run(self, hidden, given.get(feature.argument))
        hidden = hidden + torch.tanh(self.down(torch.tanh(self.up(hidden))))  # a wrong input gives wrong gradients
        in_tuple = any(feature.in_tuple for feature in self.features)
        return (hidden, None, torch.sin(hidden)) if in_tuple else hidden


class FuzzModel(nn.Module):
    """A stack of blocks between a linear layer and a linear head; the first arguments are given by position."""

    def __init__(self, features: Sequence[Feature], blocks: int, *, of_library: bool, by_position: int) -> None:
        super().__init__()
        module = "transformers.models.fuzz.modeling_fuzz" if of_library else __name__
        kind = type(FuzzBlock.__name__, (FuzzBlock,), {"features": features, "__module__": module})
        self.embed = nn.Linear(INPUTS, WIDTH)
        self.layers = nn.ModuleList(kind(index) for index in range(blocks))
        self.head = nn.Linear(WIDTH, 1)
        self.by_position = by_position
        for feature in features:
            feature.attach(self)

    def forward(self, values: Tensor) -> Tensor:
        """Make a scalar for values of shape (batch, positions, inputs)."""
        features: Sequence[Feature] = self.layers[0].features  # type: ignore[assignment]  # of a class, which copies share
        terms: list[Tensor] = []
        with torch.autocast("cpu", torch.bfloat16, enabled=any(feature.autocast for feature in features)):
            for feature in features:
                feature.begin(self)
            hidden: Tensor = self.embed(values)
            for layer in self.layers:
                given = {f.argument: f.value(self, hidden) for f in features if f.argument}
                result = layer(hidden, *(given.pop(name, None) for name in PARAMETERS[: self.by_position]), **given)
                hidden, *extras = result if isinstance(result, tuple) else (result,)
                terms += [extra.abs().mean() for extra in extras if extra is not None]
            total: Tensor = self.head(hidden).square().mean()
            terms += [term for feature in features if (term := feature.added_loss(self)) is not None]
            for term in terms:
                total = total + 0.1 * torch.tanh(term)
            return total


def linear() -> nn.Linear:
    """Make a layer from hidden states to hidden states."""
    return nn.Linear(WIDTH, WIDTH)


def scaled(hidden: Tensor, value: Any) -> Tensor:
    """Hidden states that depend a little on a number or a tensor, however large that is."""
    factor = torch.sin(torch.as_tensor(value, dtype=hidden.dtype))  # which goes on changing, where tanh ends at 1
    return hidden * (1 + 0.25 * factor)
