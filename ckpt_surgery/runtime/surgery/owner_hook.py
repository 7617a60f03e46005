"""Prepare each forward of a module around blocks: adopt what others put on the blocks, and stop its own cache."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ckpt_surgery.errors import SurgeryWarning
from ckpt_surgery.model_patches.release_names import CACHE_SWITCH, FUNCTION, RECORDER
from ckpt_surgery.runtime.blocks.library_switch import takes_switch
from ckpt_surgery.runtime.checkpoint.block_forward import BlockForward, GivenCaches
from ckpt_surgery.runtime.checkpoint.call_arguments import is_cache, none_is_past


class OwnerHook:
    """A forward pre-hook of a module that owns stacks of blocks.

    It lets each block adopt a forward that another library has put in place of the block's. With `stops_cache`, it
    switches off the cache that a model of transformers makes for itself, which would hold activations. A cache that
    the caller of the outermost model gives stays.
    """

    def __init__(
        self,
        owner: nn.Module,
        forwards: Sequence[BlockForward],
        given_caches: GivenCaches,
        *,
        is_outermost: bool,
        stops_cache: bool,
    ) -> None:
        names = list(inspect.signature(owner.forward).parameters)
        self._stops_cache = stops_cache and CACHE_SWITCH in names and takes_switch(owner)
        self._cache_index = names.index(CACHE_SWITCH) if CACHE_SWITCH in names else len(names)
        self._forwards = tuple(forwards)
        self._given_caches = given_caches
        self._is_outermost = is_outermost
        self._warned = False

    def __call__(
        self, owner: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if kwargs is None:  # another hook has removed this one during the call
            return None
        values = (*args, *kwargs.values())
        caches = () if none_is_past(values) else tuple(filter(is_cache, values))
        index = self._cache_index
        asked = args[index] if index < len(args) else kwargs.get(CACHE_SWITCH)
        if not torch.compiler.is_compiling():
            for forward in self._forwards:
                current = vars(forward.block).get("forward")
                if current is not forward and not _calls(current, forward):
                    forward.adopt(current)
            self._given_caches.note(caches)
            if self._is_outermost:
                self._given_caches.begin(owner, asked_for=asked is True)
        if not self._stops_cache or not torch.is_grad_enabled():
            return None
        on = any(forward.block.__dict__.get(FUNCTION) is not None and forward.in_mode for forward in self._forwards)
        if caches or not on:
            return None
        if asked is True and self._given_caches.asked_for and not self._warned:
            self._warned = True
            warnings.warn(
                f"{type(owner).__name__} was called with use_cache=True: it makes no cache while its blocks are "
                "checkpointed; give it one in its arguments to have it filled",
                SurgeryWarning,
                stacklevel=2,
            )
        if index < len(args):
            return (*args[:index], False, *args[index + 1 :]), kwargs
        return args, {**kwargs, CACHE_SWITCH: False}


def _calls(current: Any, forward: BlockForward) -> bool:
    """Tell whether `current` is known to call the forward that it replaces, and so can stay outside the checkpoint.

    That is known of accelerate's hooks, and of the function by which transformers 4 records hidden states in one call.
    """
    if getattr(current, "__wrapped__", None) is not forward:
        return False
    recorder = getattr(getattr(current, "__code__", None), "co_qualname", "")
    return RECORDER in recorder or vars(forward.block).get("_old_forward") is forward
