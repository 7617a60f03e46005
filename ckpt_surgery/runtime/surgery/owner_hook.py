"""The hook that a surgery leaves on the modules that own stacks of blocks."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ckpt_surgery.runtime.blocks.library_switch import FUNCTION, is_recorder, needs_cache
from ckpt_surgery.runtime.checkpoint.block_forward import BlockForward


class OwnerHook:
    """Runs before the forward of a module that owns stacks of blocks.

    It adopts what another library has put in place of a block's forward since and, with `stops_cache`, switches off
    the cache, which checkpointed blocks cannot use.
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
        if place is None or not owner.training or not torch.is_grad_enabled() or not self._any_checkpointed():
            return None
        if place < len(args):
            return (*args[:place], False, *args[place + 1 :]), kwargs
        return args, {**kwargs, "use_cache": False}

    def _any_checkpointed(self) -> bool:
        return any(vars(forward.block).get(FUNCTION) is not None for forward in self._forwards)


def _calls(current: Any, forward: BlockForward) -> bool:
    """Whether what was put around a forward is known to call it, and so can stay outside of the checkpoint.

    These are the hooks of accelerate, and what transformers 4 puts there for one call to record hidden states.
    """
    if getattr(current, "__wrapped__", None) is not forward:
        return False
    return is_recorder(current) or vars(forward.block).get("_old_forward") is forward
