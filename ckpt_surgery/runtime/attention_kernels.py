"""Which kernels of scaled dot-product attention are allowed: a choice of the process that a block may depend on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from operator import call

import torch

_NAMES = ("flash", "mem_efficient", "math", "cudnn")
_KERNELS = [
    (read, getattr(torch.backends.cuda, f"enable_{name}_sdp"))
    for name in _NAMES
    if (read := getattr(torch._C, f"_get_{name}_sdp_enabled", None)) is not None
]
"""What says whether a kernel is allowed, and what allows it, for each kernel that this torch has."""

_READS = [read for read, _ in _KERNELS]


def attention_kernels() -> tuple[bool, ...]:
    """Which kernels of scaled dot-product attention are allowed."""
    return tuple(map(call, _READS))


@contextmanager
def allowing_kernels(kernels: tuple[bool, ...]) -> Iterator[None]:
    """Inside, these kernels are allowed, as they were when `attention_kernels` was read."""
    now = attention_kernels()
    _allow(kernels)
    try:
        yield
    finally:
        _allow(now)


def _allow(kernels: tuple[bool, ...]) -> None:
    for (_, enable), value in zip(_KERNELS, kernels, strict=True):
        enable(value)
