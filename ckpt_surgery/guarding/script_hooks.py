"""Find hooks on a block's modules that a proof would run again."""

from __future__ import annotations

from torch import nn

from ckpt_surgery.measure.model_hook import ModelHook
from ckpt_surgery.runtime.checkpoint.state import HOOKING
from ckpt_surgery.runtime.tools.classes import PACKAGE, library_of

_BACKWARD = ("_backward_pre_hooks", "_backward_hooks")
_TABLES = ("_forward_pre_hooks", "_forward_hooks", *_BACKWARD)
_COMPUTING = HOOKING | {PACKAGE}


def has_script_hooks(block: nn.Module) -> bool:
    """Tell whether a block or a module in it has hooks that a proof would run again.

    Ours do not count, nor do those that libraries put around forwards: they are part of the computation.
    """
    return any(
        not isinstance(hook, ModelHook) and (table in _BACKWARD or library_of(hook) not in _COMPUTING)
        for module in block.modules()
        for table in _TABLES
        for hook in getattr(module, table, {}).values()
    )
