"""Read and set which kernels scaled dot-product attention may use: a setting of the process that blocks depend on."""

from __future__ import annotations

from operator import call

import torch

from ckpt_surgery.torch_names import kernel_reader

_NAMES = ("flash", "mem_efficient", "math", "cudnn")
_READS = tuple(map(kernel_reader, _NAMES))


def attention_kernels() -> tuple[bool, ...]:
    """Return for each kernel of scaled dot-product attention whether it is allowed."""
    return tuple(map(call, _READS))


def allow_kernels(kernels: tuple[bool, ...]) -> None:
    """Allow the same kernels as when `attention_kernels` was read."""
    for name, allowed in zip(_NAMES, kernels, strict=True):
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(allowed)
