"""Whether blocks draw random numbers, and so need their generators preserved for the recompute."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.dropout import _DropoutNd


def active_dropout(block: nn.Module) -> str:
    """The name of the first thing in a block that drops or jitters at random: a module, or a rate of one."""
    for name, module in block.named_modules():
        if isinstance(module, _DropoutNd):
            if module.p > 0:
                return name or type(module).__name__
            continue
        for attribute, value in vars(module).items():
            if ("drop" in attribute or "jitter" in attribute) and isinstance(value, float) and value > 0:
                return f"{name}.{attribute}" if name else attribute
    return ""
