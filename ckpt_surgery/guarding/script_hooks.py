"""The hooks on the modules of a block: a proof would run them once more, or without those of the forward."""

from __future__ import annotations

from typing import Any

from torch import nn

from ckpt_surgery.measure.model_hook import ModelHook
from ckpt_surgery.runtime.checkpoint.state import HOOKING
from ckpt_surgery.runtime.tools.classes import library_of

_BACKWARD = ("_backward_pre_hooks", "_backward_hooks")
_TABLES = ("_forward_pre_hooks", "_forward_hooks", *_BACKWARD)
_COMPUTING = HOOKING | {"ckpt_surgery"}

Hooks = list[tuple[str, str, Any]]


def hooks_of(block: nn.Module) -> Hooks:
    """Return the hooks that a proof would run without, or once more, each with its module and table.

    Ours are none, nor are those that libraries have before and behind forwards: they are a part of what is computed.
    """
    return [
        (path, table, hook)
        for path, module in block.named_modules()
        for table in _TABLES
        for hook in getattr(module, table, {}).values()
        if not isinstance(hook, ModelHook) and (table in _BACKWARD or library_of(hook) not in _COMPUTING)
    ]
