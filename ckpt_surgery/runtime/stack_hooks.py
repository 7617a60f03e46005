"""What a surgery leaves on the modules around the blocks: a hook on the owners of stacks, and transformers' switch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ckpt_surgery.runtime.block import FUNCTION, BlockForward
from ckpt_surgery.runtime.library_switch import needs_cache

if TYPE_CHECKING:
    from ckpt_surgery.runtime.surgery import Surgery


class Guard:
    """A hook before the forward of a module that owns stacks of blocks.

    It takes in hand what another library has put in the place of a block's forward since, and where it
    `stops_cache` switches off the cache, which checkpointed blocks could not use.
    """

    def __init__(self, owner: nn.Module, forwards: Sequence[BlockForward], *, stops_cache: bool) -> None:
        names = list(inspect.signature(owner.forward).parameters)
        stops = stops_cache and "use_cache" in names and not needs_cache(owner)
        self._cache_place = names.index("use_cache") if stops else None
        self._forwards = tuple(forwards)

    def __call__(
        self, owner: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not torch.compiler.is_compiling():
            for forward in self._forwards:
                current = vars(forward.block).get("forward")
                if current is not forward and not _calls(current, forward):
                    forward.adopt(current)
        place = self._cache_place
        if place is None or not owner.training or not torch.is_grad_enabled() or not self._active():
            return None
        if place < len(args):
            return (*args[:place], False, *args[place + 1 :]), kwargs
        return args, {**kwargs, "use_cache": False}

    def _active(self) -> bool:
        return any(vars(forward.block).get(FUNCTION) is not None for forward in self._forwards)


def _calls(current: Any, forward: BlockForward) -> bool:
    """Whether what was put around a forward is known to call it, and so can stay outside of the checkpoint.

    The hooks of accelerate, and what transformers 4 puts there for one call to record hidden states.
    """
    if getattr(current, "__wrapped__", None) is not forward:
        return False
    recorder = "check_model_inputs.<locals>" in getattr(getattr(current, "__code__", None), "co_qualname", "")
    return recorder or vars(forward.block).get("_old_forward") is forward


class Switch:
    """Stands in for transformers' method that switches checkpointing on a model on and off: the surgery does."""

    def __init__(self, surgery: Surgery, model: nn.Module) -> None:
        self._surgery = surgery
        self._model = model

    def __call__(
        self,
        enable: bool = True,
        gradient_checkpointing_func: Callable[..., Any] = checkpoint,
        every_n_layers: int = 1,
    ) -> None:
        """Checkpoint the blocks of this model, with the options in the function, or leave them alone."""
        if enable:
            self._surgery.enable(self._model, gradient_checkpointing_func, every_n_layers)
        else:
            self._surgery.disable(self._model)
