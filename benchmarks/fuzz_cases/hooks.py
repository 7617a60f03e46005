"""Features that are hooks on the block, on its parts, or on its parameters."""

from __future__ import annotations

import random
from typing import Any

from torch import Tensor, nn

from benchmarks.fuzz_cases.feature import Feature


class HookInside(Feature):
    """A forward hook on the block or a part of it counts calls and changes what that returns."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.calls = 0
        self.counts, self.changes = rng.choice([(True, False), (False, True), (True, True)])

    def attach(self, model: Any) -> None:
        for layer in dict.fromkeys(model.layers):
            (layer.up if self._variant else layer).register_forward_hook(self._hook)

    def _hook(self, module: nn.Module, args: Any, output: Any) -> Any:
        self.calls += self.counts
        return output * 1.1 if self.changes and isinstance(output, Tensor) else None


class SideLossHook(Feature):
    """A forward hook keeps the outputs of a part with their graphs; the model's loss has a term of them."""

    unjudged = frozenset({"captured"})

    def begin(self, model: Any) -> None:
        self.captured: list[Tensor] = []

    def attach(self, model: Any) -> None:
        for layer in dict.fromkeys(model.layers):
            layer.down.register_forward_hook(lambda module, args, output: self.captured.append(output.square().mean()))

    def added_loss(self) -> Tensor | None:
        return sum(self.captured[1:], self.captured[0])


class BackwardHook(Feature):
    """A full backward hook scales the gradient, of the block or of a part."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.calls = 0
        self.on_part = rng.random() < 0.5

    def attach(self, model: Any) -> None:
        for layer in dict.fromkeys(model.layers):
            (layer.up if self.on_part else layer).register_full_backward_hook(self._hook)

    def _hook(self, module: nn.Module, inputs: Any, outputs: Any) -> Any:
        self.calls += 1
        return tuple(None if gradient is None else gradient * 0.5 for gradient in inputs)


class AccumulationHook(Feature):
    """A hook after the accumulation of a parameter's gradient; one of zeros is as good as none, and not counted."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.calls = 0

    def attach(self, model: Any) -> None:
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._hook)

    def _hook(self, parameter: Any) -> None:
        self.calls += bool(parameter.grad.any())
        parameter.grad.mul_(0.5)


class OutputGradientHook(Feature):
    """The model clips the gradient between blocks."""

    def after_block(self, model: Any, hidden: Any, index: int) -> Any:
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient.clamp(-1e-2, 1e-2))
        return hidden


class InPlaceAfter(Feature):
    """The model writes into what a block returns."""

    def after_block(self, model: Any, hidden: Any, index: int) -> Any:
        return hidden.mul_(1.1)
