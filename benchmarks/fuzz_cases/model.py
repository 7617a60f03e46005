"""The model of a case: a stack of two or three blocks whose forwards are made of features."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from benchmarks.fuzz_cases.feature import FEATURES, INPUTS, Feature, Output

MOST_CALLS = 800
"""More calls of blocks than any training makes that comes to an end."""
_OF_TRANSFORMERS = "transformers.models.fuzz.modeling_fuzz"


class Endless(Exception):
    """A backward that runs blocks again and again without end."""


class FuzzBlock(nn.Module):
    """A residual block. Subclasses made by `model_of` have the features of a case, and name their parameters."""

    features: ClassVar[tuple[Feature, ...]] = ()
    positional: ClassVar[tuple[str, ...]] = ()
    place: ClassVar[int] = 0
    """How many of the features run before the block's own layers."""
    entries: ClassVar[list[None]] = []
    """One entry for each call of the blocks of a case."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.up = nn.Linear(FEATURES, FEATURES)
        self.down = nn.Linear(FEATURES, FEATURES)
        for feature in self.features:
            feature.build(self, index)

    def compute(self, hidden_states: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the block, once its arguments are known. Raises Endless."""
        self.entries.append(None)
        if len(self.entries) > MOST_CALLS:
            raise Endless(f"the blocks were called {MOST_CALLS} times")
        arguments = {**dict(zip(self.positional, args, strict=False)), **kwargs}
        hidden = hidden_states
        for place, feature in enumerate(self.features):
            if place == self.place:
                hidden = self.layers(hidden)
            if feature.live:
                hidden = feature.run(self, hidden, arguments.get(feature.argument))
        if self.place >= len(self.features):
            hidden = self.layers(hidden)
        output = next((feature for feature in self.features if isinstance(feature, Output)), None)
        return hidden if output is None else output.pack(self, hidden, hidden_states)

    def layers(self, hidden: Tensor) -> Tensor:
        """Run the block's own layers: nonlinear, so that a wrong input gives wrong gradients."""
        change: Tensor = self.down(torch.tanh(self.up(hidden)))
        return hidden + torch.tanh(change)


class FuzzModel(nn.Module):
    """An input layer, the blocks, and a sum. Subclasses made by `model_of` have the features of a case."""

    features: ClassVar[tuple[Feature, ...]] = ()
    positional: ClassVar[tuple[str, ...]] = ()

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Linear(INPUTS, FEATURES)
        self.layers = nn.ModuleList(blocks)
        self.head = nn.Linear(FEATURES, 1)

    def forward(self, values: Tensor, **given: Any) -> Tensor:
        """Make a scalar for values of shape (batch, positions, inputs); features know what else is `given`."""
        output = next((feature for feature in self.features if isinstance(feature, Output)), None)
        with ExitStack() as contexts:
            for feature in self.features:
                feature.begin(self)
            for feature in self.features:
                contexts.enter_context(feature.around())
            hidden: Tensor = self.embed(values)
            extras: list[Tensor] = []
            for index, layer in enumerate(self.layers):
                result = layer(hidden, *self._positional(hidden, index), **self._keyword(hidden, index))
                if output is None:
                    hidden = result
                else:
                    hidden, more = output.unpack(result)
                    extras += more
                for feature in self.features:
                    hidden = feature.after_block(self, hidden, index)
            total: Tensor = self.head(hidden).square().mean()
            for extra in extras:
                total = total + 0.1 * torch.tanh(extra.abs().mean())
            for feature in self.features:
                if feature.live and (term := feature.added_loss()) is not None:
                    total = total + 0.1 * torch.tanh(term)
            return total

    def _positional(self, hidden: Tensor, index: int) -> list[Any]:
        by_name = {feature.argument: feature for feature in self.features}
        return [by_name[name].value(self, hidden, index) for name in self.positional]

    def _keyword(self, hidden: Tensor, index: int) -> dict[str, Any]:
        named = (feature for feature in self.features if feature.argument not in ("", *self.positional))
        return {feature.argument: feature.value(self, hidden, index) for feature in named}


def model_of(features: Sequence[Feature], positional: Sequence[str], blocks: int, place: int) -> FuzzModel:
    """Make a model whose blocks have these features; the arguments named in `positional` are given by position."""
    named = [*positional, *(f.argument for f in features if f.argument), *(n for f in features for n in f.beside)]
    parameters = list(dict.fromkeys(named))

    def forward(self: FuzzBlock, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        return self.compute(hidden_states, args, kwargs)

    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter("self", either),
            inspect.Parameter("hidden_states", either),
            *(inspect.Parameter(name, either, default=None) for name in parameters),
        ]
    )
    shared = {"features": tuple(features), "positional": tuple(positional)}
    block = type("FuzzBlock", (FuzzBlock,), {**shared, "place": place, "entries": [], "forward": forward})
    if any(feature.of_transformers for feature in features):
        block.__module__ = _OF_TRANSFORMERS
    model: FuzzModel = type("FuzzModel", (FuzzModel,), shared)([block(index) for index in range(blocks)])
    for feature in features:
        feature.attach(model)
    return model
