"""Features that are hooks on the block, on its parts, or on its parameters."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.fuzz_cases.feature import FEATURES, Feature


class HookInside(Feature):
    """A forward hook on a part of the block counts calls and changes what the part returns."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.calls = 0
        self.counts, self.changes = rng.choice([(True, False), (False, True), (True, True)])

    def target(self, layer: Any) -> nn.Module:
        """The module that the hook is on."""
        part: nn.Module = layer.up
        return part

    def attach(self, model: Any) -> None:
        for layer in dict.fromkeys(model.layers):
            self.target(layer).register_forward_hook(self._hook)

    def _hook(self, module: nn.Module, args: Any, output: Any) -> Any:
        self.calls += self.counts
        return output * 1.1 if self.changes and isinstance(output, Tensor) else None


class _Product(nn.Module):
    """A product."""

    def forward(self, hidden: Tensor, table: Tensor) -> Tensor:
        return hidden * table


class ObservedTable(HookInside):
    """A hook on a part that is given a table: an attribute of the block, or one of the Python module."""

    def build(self, block: Any, index: int) -> None:
        block.product = _Product()
        if self._variant:
            block.factors = torch.linspace(0.5, 1.5, FEATURES)

    def target(self, layer: Any) -> nn.Module:
        part: nn.Module = layer.product
        return part

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return torch.sin(block.product(hidden, block.factors if self._variant else _TABLE))


_TABLE = torch.linspace(0.5, 1.5, FEATURES)


class HookOnBlock(HookInside):
    """The same on the block itself."""

    def target(self, layer: Any) -> nn.Module:
        block: nn.Module = layer
        return block


class PreHookInside(Feature):
    """A forward pre-hook on a part of the block changes its input."""

    def attach(self, model: Any) -> None:
        for layer in dict.fromkeys(model.layers):
            layer.down.register_forward_pre_hook(lambda module, args: (args[0] * 0.9,))


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


class ParameterHook(Feature):
    """A hook on parameters clips their gradients."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.calls = 0

    def attach(self, model: Any) -> None:
        for layer in dict.fromkeys(model.layers):
            for parameter in layer.parameters():
                if parameter.requires_grad:
                    parameter.register_hook(self._hook)

    def _hook(self, gradient: Tensor) -> Tensor:
        self.calls += bool(gradient.any())  # one of zeros is as good as none
        return gradient.clamp(-1e-2, 1e-2)


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
