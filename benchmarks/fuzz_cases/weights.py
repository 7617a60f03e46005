"""Features that share, freeze or write the weights of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from benchmarks.fuzz_cases.feature import FEATURES, Feature


class TiedParts(Feature):
    """All blocks have the same layer."""

    def attach(self, model: Any) -> None:
        for layer in model.layers:
            layer.up = model.layers[0].up


class SameBlockTwice(Feature):
    """The first block is also the last."""

    def attach(self, model: Any) -> None:
        model.layers.append(model.layers[0])


class FrozenParts(Feature):
    """Some parameters of each block are frozen."""

    def build(self, block: Any, index: int) -> None:
        block.up.requires_grad_(False)


class FrozenBlock(Feature):
    """The first block is frozen, with everything before it or without."""

    def attach(self, model: Any) -> None:
        model.layers[0].requires_grad_(False)
        if self._variant:
            model.embed.requires_grad_(False)


class Codebook(Feature):
    """A frozen parameter that the block itself moves towards its inputs: vector quantisation."""

    def build(self, block: Any, index: int) -> None:
        codes = torch.randn(5, FEATURES)
        if self._variant:
            block.register_buffer("codes", codes)
        else:
            block.codes = nn.Parameter(codes, requires_grad=False)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        flat = hidden.detach().reshape(-1, FEATURES).to(block.codes.dtype)
        nearest = torch.cdist(flat, block.codes).argmin(1)
        quantised = block.codes[nearest].view_as(hidden).to(hidden.dtype)
        if block.training:
            with torch.no_grad():
                block.codes[nearest] = 0.8 * block.codes[nearest] + 0.2 * flat
        return hidden + 0.5 * (quantised - hidden).detach() * hidden


class MomentumEncoder(Feature):
    """A frozen copy of a layer that follows it."""

    def build(self, block: Any, index: int) -> None:
        block.student, block.teacher = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        block.teacher.requires_grad_(False)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        with torch.no_grad():
            for own, followed in zip(block.teacher.parameters(), block.student.parameters(), strict=True):
                (own.data if self._variant else own).lerp_(followed, 0.3)
        return block.student(hidden).tanh() * block.teacher(hidden).sigmoid() + hidden


class MergedPatch(Feature):
    """A patch that lies in a weight while the model's forward runs, and is taken out before the backward."""

    def build(self, block: Any, index: int) -> None:
        block.up.requires_grad_(self._variant)

    def begin(self, model: Any) -> None:
        self._merged = [layer.up.weight for layer in dict.fromkeys(model.layers)]

    @contextmanager
    def around(self) -> Iterator[None]:
        own = [weight.data for weight in self._merged]
        for weight in self._merged:
            weight.data = weight.data + 0.25
        try:
            yield
        finally:
            for weight, values in zip(self._merged, own, strict=True):
                weight.data = values


class UpdatesParameter(Feature):
    """Clamps a trained parameter before it is used."""

    def build(self, block: Any, index: int) -> None:
        block.temperature = nn.Parameter(torch.full((1,), 2.0))

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        with torch.no_grad():
            block.temperature.data.mul_(0.9).clamp_(max=1.5)
        return torch.sin(hidden * block.temperature)
