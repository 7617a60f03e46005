"""Faults planted into the checkpointing of a transformers 5 model, each wrong in one way and silent otherwise.

`switch_with` turns a fault into a switch for `verify`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ckpt_surgery.measure.results import Mode
from ckpt_surgery.measure.switch import switch_checkpointing
from ckpt_surgery.runtime.checkpoint.call_arguments import is_cache, positional_names

Function = Callable[..., Any]


class Fault:
    """A checkpointing function of one block, here without a fault."""

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
    """Make a switch that plants the fault wherever a block checkpoints, while checkpointing is on."""
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
    """A recompute that attends to padding."""

    MASKS: ClassVar = ("attention_mask", "encoder_attention_mask")

    def again(self, function: Any, runs: int, *args: Any) -> Any:
        names = positional_names(self.block.forward)
        given = [self.all_seen(v) if name in self.MASKS else v for name, v in zip(names, args, strict=False)]
        return function(*given, **{name: None for name in names[len(args) :] if name in self.MASKS})

    def all_seen(self, mask: Tensor | None) -> Tensor | None:
        return mask if mask is None else (torch.zeros if mask.is_floating_point() else torch.ones)(mask.shape).to(mask)


class _OtherMask(Fault):
    """A recompute that uses another forward's mask."""

    mask: Tensor | None = None

    def __init__(self, block: nn.Module, checkpoint: Any) -> None:
        super().__init__(block, checkpoint)
        self.handles.append(block.register_forward_pre_hook(self.look, with_kwargs=True))

    def look(self, block: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self.mask = self.chosen(keywords.get("attention_mask", args[1] if len(args) > 1 else None))

    def chosen(self, mask: Tensor | None) -> Tensor | None:
        return mask

    def again(self, function: Any, runs: int, *args: Any) -> Any:
        if len(args) > 1:
            return function(args[0], self.mask, *args[2:])
        return function(*args, attention_mask=self.mask)


class FirstMask(_OtherMask):
    """A recompute that uses the first forward's mask."""

    def chosen(self, mask: Tensor | None) -> Tensor | None:
        return mask if self.mask is None else self.mask


class LatestMask(_OtherMask):
    """A recompute that uses the latest forward's mask."""


class OtherDropout(Fault):
    """A recompute that draws other dropout masks."""

    def __init__(self, block: nn.Module, checkpoint: Any) -> None:
        super().__init__(block, partial(checkpoint, preserve_rng_state=False))


class _OnGradient(Fault):
    """A change of the gradient of one weight of the block."""

    def __init__(self, block: nn.Module, checkpoint: Any) -> None:
        super().__init__(block, checkpoint)
        weight = next(p for p in block.parameters() if p.dim() > 1)
        if weight.requires_grad:
            self.handles.append(weight.register_hook(self.changed))  # type: ignore[no-untyped-call]

    def changed(self, gradient: Tensor) -> Tensor:
        raise NotImplementedError


class Scaled(_OnGradient):
    """A gradient of one weight that is a little too large."""

    FACTORS: ClassVar = {torch.float32: 1.0003, torch.bfloat16: 1.10, torch.float16: 1.03}

    def changed(self, gradient: Tensor) -> Tensor:
        return gradient * self.FACTORS[gradient.dtype]


class SmallSignsFlipped(_OnGradient):
    """A gradient of one weight with the wrong sign where it is small."""

    def changed(self, gradient: Tensor) -> Tensor:
        return torch.where(gradient.abs() < gradient.abs().max() / 8000, -gradient, gradient)


class StaleWeights(Fault):
    """A recompute with the weights of the first step. Their copies are allocated before it, so they are no leak."""

    def __init__(self, block: nn.Module, checkpoint: Any) -> None:
        super().__init__(block, checkpoint)
        self.parameters = list(block.parameters())
        self.weights = [parameter.detach().clone() for parameter in self.parameters]
        self.noted = False

    def first(self, function: Any, *args: Any) -> Any:
        if not self.noted:
            self.noted = True
            for weight, parameter in zip(self.weights, self.parameters, strict=True):
                weight.copy_(parameter.detach())
        return function(*args)

    def again(self, function: Any, runs: int, *args: Any) -> Any:
        now = [parameter.data for parameter in self.parameters]
        self._put(self.weights)
        try:
            return function(*args)
        finally:
            self._put(now)

    def _put(self, weights: list[Tensor]) -> None:
        for parameter, data in zip(self.parameters, weights, strict=True):
            parameter.data = data


class GradientOverwritten(Fault):
    """A recompute that forgets the gradients of earlier backwards."""

    def again(self, function: Any, runs: int, *args: Any) -> Any:
        for parameter in self.block.parameters():
            parameter.grad = None
        return function(*args)


class LatestArguments(Fault):
    """A recompute that uses the latest forward's hidden states, released with the last recompute."""

    latest: Tensor | None = None
    waiting = 0

    def first(self, function: Any, *args: Any) -> Any:
        self.latest = args[0].detach()
        self.waiting += 1
        return function(*args)

    def again(self, function: Any, runs: int, *args: Any) -> Any:
        latest, self.waiting = self.latest, self.waiting - 1
        if not self.waiting:
            self.latest = None
        return function(args[0] if latest is None else args[0] + (latest - args[0]).detach(), *args[1:])


class OffAfterEvaluation(Fault):
    """A recompute that is off once the block has run in evaluation mode."""

    evaluated = False

    def __init__(self, block: nn.Module, checkpoint: Any) -> None:
        super().__init__(block, checkpoint)
        self.handles.append(block.register_forward_pre_hook(self.look))

    def look(self, block: nn.Module, args: tuple[Any, ...]) -> None:
        self.evaluated = self.evaluated or not block.training

    def again(self, function: Any, runs: int, *args: Any) -> Any:
        return function(args[0] * 1.01 if self.evaluated else args[0], *args[1:])


class CheckpointLost(Fault):
    """A checkpoint of the first forward only."""

    forwards = 0

    def __call__(self, function: Function, *args: Any) -> Any:
        self.forwards += 1
        return function(*args) if self.forwards > 1 else super().__call__(function, *args)


class SecondBackward(Fault):
    """A second backward through the same graph that recomputes something else."""

    def again(self, function: Any, runs: int, *args: Any) -> Any:
        return function(args[0] * 1.01 if runs > 2 else args[0], *args[1:])


class FrozenBase(Fault):
    """A recompute that is off in a block with frozen parameters."""

    def again(self, function: Any, runs: int, *args: Any) -> Any:
        frozen = any(not parameter.requires_grad for parameter in self.block.parameters())
        return function(args[0] * 1.01 if frozen else args[0], *args[1:])


class AutocastDropped(Fault):
    """A recompute without autocast."""

    def again(self, function: Any, runs: int, *args: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return function(*args)


class _InDtype(Fault):
    """A recompute that is off in one dtype, and not under autocast."""

    DTYPE: ClassVar[torch.dtype]

    def again(self, function: Any, runs: int, *args: Any) -> Any:
        off = args[0].dtype is self.DTYPE and not torch.is_autocast_enabled("cpu")
        return function(args[0] * 1.5 if off else args[0], *args[1:])


class InBfloat16(_InDtype):
    """A recompute that is off in bfloat16 only."""

    DTYPE = torch.bfloat16


class InFloat16(_InDtype):
    """A recompute that is off in float16 only."""

    DTYPE = torch.float16


class _Holding(Fault):
    """A fault that holds what the parts of the block return."""

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
    """A forward that holds activations until the recompute."""

    def first(self, function: Any, *args: Any) -> Any:
        return self.holding(function, *args)

    def again(self, function: Any, runs: int, *args: Any) -> Any:
        self.held.clear()
        return function(*args)


class RecomputedHeld(_Holding):
    """A recompute whose results outlive the backward."""

    def again(self, function: Any, runs: int, *args: Any) -> Any:
        return self.holding(function, *args)


class RecomputedHeldToTheEnd(_Holding):
    """A recompute whose operators' results live until the backward ends."""

    def again(self, function: Any, runs: int, *args: Any) -> Any:
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(self.held.clear)
        with _Collecting(self.held):
            return function(*args)


class _Collecting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that holds what operators return."""

    def __init__(self, held: list[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held = held

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.held.append(func(*args, **(kwargs or {})))
        return self.held[-1]


class Growing(_Holding):
    """A leak in every step from the second on."""

    def again(self, function: Any, runs: int, *args: Any) -> Any:
        return self.holding(function, *args) if self.recomputes > 1 else function(*args)


class CacheWrittenAgain(Fault):
    """A block that keeps its cache under checkpointing, and writes it twice."""

    def __init__(self, block: Any, checkpoint: Any) -> None:
        super().__init__(block, checkpoint)
        block._can_checkpoint_with_cache = True


class CacheWrittenInBackward(Fault):
    """A recompute that writes into the block's cache without raising."""

    cache: Any = None

    def __init__(self, block: nn.Module, checkpoint: Any) -> None:
        super().__init__(block, checkpoint)
        self.handles.append(block.register_forward_pre_hook(self.look, with_kwargs=True))

    def look(self, block: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self.cache = next(filter(is_cache, (*args, *keywords.values())), None)

    def again(self, function: Any, runs: int, *args: Any) -> Any:
        cache, self.cache = self.cache, None
        if cache is not None:
            entry = args[0].detach()[:, None]
            getattr(cache, "self_attention_cache", cache).update(entry, entry, 0)
        return function(*args)
