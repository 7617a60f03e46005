"""The kernels of scaled dot-product attention that are allowed: a choice of the process that a block may depend on."""

from __future__ import annotations

from collections.abc import Callable
from operator import call

import torch

_NAMES = [
    name for name in ("flash", "mem_efficient", "math", "cudnn") if hasattr(torch.backends.cuda, f"{name}_sdp_enabled")
]
"""The kernels that this torch has."""
_READS: list[Callable[[], bool]] = [  # torch's own functions in C where they can be had, for they are asked often
    getattr(torch._C, f"_get_{name}_sdp_enabled", getattr(torch.backends.cuda, f"{name}_sdp_enabled"))
    for name in _NAMES
]


def attention_kernels() -> tuple[bool, ...]:
    """Tell for each kernel of scaled dot-product attention whether it is allowed."""
    return tuple(map(call, _READS))


def allow_kernels(kernels: tuple[bool, ...]) -> None:
    """Allow these kernels, as they were when `attention_kernels` was read."""
    for name, allowed in zip(_NAMES, kernels, strict=True):
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(allowed)
