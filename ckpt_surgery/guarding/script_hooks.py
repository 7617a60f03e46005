"""The hooks on the modules of a block: a proof would run them once more, or without those of the forward."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from ckpt_surgery.measure.model_hook import ModelHook

_TABLES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_COMPUTING = {"accelerate", "ckpt_surgery", "deepspeed", "diffusers", "peft", "torch", "transformers"}
"""The libraries whose hooks are a part of what a block computes."""

Hooks = list[tuple[str, str, Any]]


def hooks_of(block: nn.Module) -> Hooks:
    """Return the hooks on a block and in it that are not ours, each with its module and table."""
    return [
        (path, table, hook)
        for path, module in block.named_modules()
        for table in _TABLES
        for hook in getattr(module, table, {}).values()
        if not isinstance(hook, ModelHook)
    ]


def is_of_script(hook: Any) -> bool:
    """Tell whether a hook is of none of the libraries whose hooks are a part of what a block computes."""
    while isinstance(hook, partial):
        hook = hook.func
    return (getattr(hook, "__module__", None) or "").partition(".")[0] not in _COMPUTING
