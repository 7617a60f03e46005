"""The hooks on the modules of a block that a proof would run once more."""

from __future__ import annotations

from torch import nn

from ckpt_surgery.measure.model_hook import ModelHook
from ckpt_surgery.runtime.checkpoint.state import HOOKING
from ckpt_surgery.runtime.tools.classes import library_of

_BACKWARD = ("_backward_pre_hooks", "_backward_hooks")
_TABLES = ("_forward_pre_hooks", "_forward_hooks", *_BACKWARD)
_COMPUTING = HOOKING | {"ckpt_surgery"}


def has_script_hooks(block: nn.Module) -> bool:
    """Tell whether there are hooks on a block or in it that a proof would run once more.

    Ours are none, nor are those that libraries have around forwards: they are a part of what is computed.
    """
    return any(
        not isinstance(hook, ModelHook) and (table in _BACKWARD or library_of(hook) not in _COMPUTING)
        for module in block.modules()
        for table in _TABLES
        for hook in getattr(module, table, {}).values()
    )
