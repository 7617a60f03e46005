"""The model of a case, a stack of blocks, and what a feature of a block or of the code around it can do."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

FEATURES = 8
"""The last dimension of the hidden states, of shape (batch, positions, features)."""
BATCH, POSITIONS, INPUTS = 2, 6, 4


class Feature:
    """One thing that a block, its arguments or the code around it does. One object serves one run of one case.

    A subclass overrides what it needs. State on the feature is outside the block: the judge takes a difference there
    for harmless, and for a fault where the attribute is in `strict`; private attributes and those in `unjudged` are
    not compared. `_variant` decides between variants; it is seeded by the case and the feature's name, so that
    leaving out another feature changes nothing here. A feature that is not `live` yet does not `run`.
    """

    argument: ClassVar[str] = ""
    """The name of the block's parameter that the feature fills; empty where it needs none."""
    beside: ClassVar[tuple[str, ...]] = ()
    """Parameters that the block has beside it, and that nobody gives."""
    unjudged: ClassVar[frozenset[str]] = frozenset()
    strict: ClassVar[frozenset[str]] = frozenset()
    of_transformers = False
    """Whether the class of the block passes for one of transformers."""
    given: Any = None
    """The argument, where it is the same for all blocks."""
    live = True

    def __init__(self, rng: random.Random) -> None:
        self._variant = rng.random() < 0.5

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
        return self.given

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        """Return what the block does with its hidden states and with the argument."""
        return hidden

    def added_loss(self) -> Tensor | None:
        """Make a term of the loss that comes from outside the block's outputs."""
        return None

    def after_backward(self) -> None:
        """Do what happens after a backward."""


class Output(Feature):
    """A form in which a block returns its hidden states beside other values.

    `pack` makes it of those and of the hidden states that the block got; `unpack` returns the hidden states again, and
    the other tensors that the model uses.
    """

    pack: ClassVar[Callable[[Tensor, Tensor], Any]]
    unpack: ClassVar[Callable[[Any], tuple[Tensor, list[Tensor]]]]


class FuzzBlock(nn.Module):
    """A residual block. Subclasses made by `model_of` have the features of a case, and name their parameters."""

    features: ClassVar[tuple[Feature, ...]] = ()
    positional: ClassVar[tuple[str, ...]] = ()

    def __init__(self, index: int) -> None:
        super().__init__()
        self.up = nn.Linear(FEATURES, FEATURES)
        self.down = nn.Linear(FEATURES, FEATURES)
        for feature in self.features:
            feature.build(self, index)

    def compute(self, hidden_states: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the block, once its arguments are known."""
        arguments = {**dict(zip(self.positional, args, strict=False)), **kwargs}
        hidden = hidden_states
        for feature in self.features:
            if feature.live:
                hidden = feature.run(self, hidden, arguments.get(feature.argument))
        hidden = hidden + torch.tanh(self.down(torch.tanh(self.up(hidden))))  # a wrong input gives wrong gradients
        output = _output(self.features)
        return hidden if output is None else type(output).pack(hidden, hidden_states)


def _output(features: Sequence[Feature]) -> Output | None:
    return next((feature for feature in features if isinstance(feature, Output)), None)


class FuzzModel(nn.Module):
    """A stack of blocks between a linear layer and a linear head."""

    features: ClassVar[tuple[Feature, ...]] = ()
    positional: ClassVar[tuple[str, ...]] = ()

    def __init__(self, layers: Sequence[FuzzBlock]) -> None:
        super().__init__()
        self.embed = nn.Linear(INPUTS, FEATURES)
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(FEATURES, 1)

    def forward(self, values: Tensor, **given: Any) -> Tensor:
        """Make a scalar for values of shape (batch, positions, inputs); features know what else is `given`."""
        output = _output(self.features)
        with ExitStack() as contexts:
            for feature in self.features:
                feature.begin(self)
                contexts.enter_context(feature.around())
            hidden: Tensor = self.embed(values)
            extras: list[Tensor] = []
            for index, layer in enumerate(self.layers):
                named = {f.argument: f.value(self, hidden, index) for f in self.features if f.argument}
                result = layer(hidden, *(named.pop(name) for name in self.positional), **named)
                hidden, more = (result, []) if output is None else type(output).unpack(result)
                extras += more
            total: Tensor = self.head(hidden).square().mean()
            for extra in extras:
                total = total + 0.1 * torch.tanh(extra.abs().mean())
            for feature in self.features:
                if feature.live and (term := feature.added_loss()) is not None:
                    total = total + 0.1 * torch.tanh(term)
            return total


def model_of(features: Sequence[Feature], positional: Sequence[str], blocks: int) -> FuzzModel:
    """Make a model whose blocks have these features; the arguments named in `positional` are given by position."""
    named = [*positional, *(f.argument for f in features if f.argument), *(n for f in features for n in f.beside)]

    def forward(self: FuzzBlock, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        return self.compute(hidden_states, args, kwargs)

    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter("self", either),
            inspect.Parameter("hidden_states", either),
            *(inspect.Parameter(name, either, default=None) for name in dict.fromkeys(named)),
        ]
    )
    shared = {"features": tuple(features), "positional": tuple(positional)}
    block = type("FuzzBlock", (FuzzBlock,), {**shared, "forward": forward})
    if any(feature.of_transformers for feature in features):
        block.__module__ = "transformers.models.fuzz.modeling_fuzz"
    model: FuzzModel = type("FuzzModel", (FuzzModel,), shared)([block(index) for index in range(blocks)])
    for feature in features:
        feature.attach(model)
    return model


def named(*kinds: type[Feature]) -> dict[str, type[Feature]]:
    """Features by name."""
    return {kind.__name__: kind for kind in kinds}


def linear() -> nn.Linear:
    """Make a layer from hidden states to hidden states."""
    return nn.Linear(FEATURES, FEATURES)


def scaled(hidden: Tensor, value: Any) -> Tensor:
    """Hidden states that depend a little on a number or a tensor, however large that is."""
    factor = torch.sin(torch.as_tensor(value, dtype=hidden.dtype))  # which goes on changing, where tanh ends at 1
    return hidden * (1 + 0.25 * factor)
