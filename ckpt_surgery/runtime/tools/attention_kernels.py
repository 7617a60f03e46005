"""Which kernels of scaled dot-product attention are allowed: a choice of the process that a block may depend on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import call

import torch

_NAMES = ("flash", "mem_efficient", "math", "cudnn")


def _reader(name: str) -> Callable[[], bool] | None:
    """What tells whether a kernel is allowed; torch's own function in C where it can be had, which is asked often."""
    public: Callable[[], bool] | None = getattr(torch.backends.cuda, f"{name}_sdp_enabled", None)
    read: Callable[[], bool] | None = getattr(torch._C, f"_get_{name}_sdp_enabled", public)
    return read


_KERNELS = [
    (read, getattr(torch.backends.cuda, f"enable_{name}_sdp"))
    for name in _NAMES
    if (read := _reader(name)) is not None
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
