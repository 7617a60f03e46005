"""Faults planted into the checkpointing of a transformers 5 model, each wrong in one way and silent otherwise.

`switch_with` makes of a fault what `verify` takes to switch checkpointing on and off.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ckpt_surgery.measure.results import Mode
from ckpt_surgery.measure.switch import switch_checkpointing

Function = Callable[..., Any]


class Fault:
    """Nothing is wrong with this one. It stands in for the checkpointing function of one block."""

    def __init__(self, block: nn.Module, checkpoint: Function) -> None:
        self.block = block
        self.checkpoint = checkpoint
        self.recomputes = 0
        self.handles: list[Any] = []

    def __call__(self, function: Function, *args: Any) -> Any:
        runs = 0

        def run(*given: Any) -> Any:
            nonlocal runs
            runs += 1
            if runs == 1:
                return self.first(function, *given)
            self.recomputes += 1
            return self.again(function, runs, *given)

        return self.checkpoint(run, *args)

    def first(self, function: Function, *args: Any) -> Any:
        return function(*args)

    def again(self, function: Function, runs: int, *args: Any) -> Any:
        return function(*args)

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()


def switch_with(kind: Callable[[nn.Module, Function], Fault]) -> Callable[[nn.Module, Mode | None], None]:
    """A switch that plants the fault wherever a block checkpoints, while checkpointing is on."""
    planted: list[Fault] = []

    def switch(model: nn.Module, mode: Mode | None) -> None:
        for fault in planted:
            fault.remove()
        planted.clear()
        switch_checkpointing(model, mode)
        for module in model.modules() if mode is not None else ():
            function = vars(module).get("_gradient_checkpointing_func")
            if function is not None and getattr(module, "gradient_checkpointing", False):
                planted.append(kind(module, function))
                vars(module)["_gradient_checkpointing_func"] = planted[-1]

    return switch


class MaskDropped(Fault):
    """The recompute attends to padding."""

    def again(self, function: Any, runs: int, *args: Any) -> Any:
        return partial(function.func, *function.args, **{**function.keywords, "attention_mask": None})(*args)


class OtherDropout(Fault):
    """The recompute draws other dropout masks."""

    def __init__(self, block: nn.Module, checkpoint: Any) -> None:
        super().__init__(block, partial(checkpoint, preserve_rng_state=False))


class _OnGradient(Fault):
    """Changes the gradient of one weight of the block."""

    def __init__(self, block: nn.Module, checkpoint: Any) -> None:
        super().__init__(block, checkpoint)
        weight = next(p for p in block.parameters() if p.dim() > 1)
        if weight.requires_grad:
            self.handles.append(weight.register_hook(self.changed))  # type: ignore[no-untyped-call]

    def changed(self, gradient: Tensor) -> Tensor:
        raise NotImplementedError


class Scaled(_OnGradient):
    """The gradient of one weight is a little too large."""

    FACTORS: ClassVar = {torch.float32: 1.0003, torch.bfloat16: 1.10, torch.float16: 1.03}

    def changed(self, gradient: Tensor) -> Tensor:
        return gradient * self.FACTORS[gradient.dtype]


class SmallSignsFlipped(_OnGradient):
    """The gradient of one weight has the wrong sign where it is small."""

    def changed(self, gradient: Tensor) -> Tensor:
        return torch.where(gradient.abs() < gradient.abs().max() / 8000, -gradient, gradient)


class StaleWeights(Fault):
    """The recompute uses the weights of the first step."""

    def first(self, function: Any, *args: Any) -> Any:
        if not hasattr(self, "weights"):
            self.weights = [parameter.detach().clone() for parameter in self.block.parameters()]
        return function(*args)

    def again(self, function: Any, runs: int, *args: Any) -> Any:
        now = [parameter.data for parameter in self.block.parameters()]
        self._put(self.weights)
        try:
            return function(*args)
        finally:
            self._put(now)

    def _put(self, weights: list[Tensor]) -> None:
        for parameter, data in zip(self.block.parameters(), weights, strict=True):
            parameter.data = data


class GradientOverwritten(Fault):
    """The recompute forgets the gradients of earlier backwards."""

    def again(self, function: Any, runs: int, *args: Any) -> Any:
        for parameter in self.block.parameters():
            parameter.grad = None
        return function(*args)


class LatestArguments(Fault):
    """The recompute uses the hidden states of the latest forward."""

    latest: Tensor | None = None

    def first(self, function: Any, *args: Any) -> Any:
        self.latest = args[0].detach()
        return function(*args)

    def again(self, function: Any, runs: int, *args: Any) -> Any:
        assert self.latest is not None
        return function(args[0] + (self.latest - args[0]).detach(), *args[1:])


class SecondBackward(Fault):
    """A second backward through the same graph recomputes something else."""

    def again(self, function: Any, runs: int, *args: Any) -> Any:
        return function(args[0] * 1.01 if runs > 2 else args[0], *args[1:])


class FrozenBase(Fault):
    """The recompute of a block with frozen parameters is off."""

    def again(self, function: Any, runs: int, *args: Any) -> Any:
        frozen = any(not parameter.requires_grad for parameter in self.block.parameters())
        return function(args[0] * 1.01 if frozen else args[0], *args[1:])


class AutocastDropped(Fault):
    """The recompute does without autocast."""

    def again(self, function: Any, runs: int, *args: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return function(*args)


class HalfPrecision(Fault):
    """The recompute is off in half precision only."""

    def again(self, function: Any, runs: int, *args: Any) -> Any:
        return function(args[0] * 1.1 if args[0].dtype.itemsize == 2 else args[0], *args[1:])


class _Holding(Fault):
    """Holds what the parts of the block return."""

    def __init__(self, block: nn.Module, checkpoint: Any) -> None:
        super().__init__(block, checkpoint)
        self.held: list[Any] = []

    def holding(self, function: Any, *args: Any) -> Any:
        handles = [
            part.register_forward_hook(lambda module, given, output: self.held.append(output))
            for part in self.block.modules()
            if part is not self.block
        ]
        try:
            return function(*args)
        finally:
            for handle in handles:
                handle.remove()


class ActivationsHeld(_Holding):
    """The forward holds activations until the recompute."""

    def first(self, function: Any, *args: Any) -> Any:
        return self.holding(function, *args)

    def again(self, function: Any, runs: int, *args: Any) -> Any:
        self.held.clear()
        return function(*args)


class RecomputedHeld(_Holding):
    """What is recomputed stays alive after the backward."""

    def again(self, function: Any, runs: int, *args: Any) -> Any:
        return self.holding(function, *args)


class Growing(_Holding):
    """From the second step on, every step leaves something behind."""

    def again(self, function: Any, runs: int, *args: Any) -> Any:
        return self.holding(function, *args) if self.recomputes > 1 else function(*args)


class CacheWrittenAgain(Fault):
    """The block keeps its cache under checkpointing, and writes it twice."""

    def __init__(self, block: Any, checkpoint: Any) -> None:
        super().__init__(block, checkpoint)
        block._can_checkpoint_with_cache = True
