"""An allocator limit for tests without a GPU: more live bytes on the CPU end with torch's own OutOfMemoryError.

A script switches it on with two lines, before it makes its model:

    from tests.zoo.memory_limit import limit_memory
    limit_memory(20 * 2**20)

It counts the storages that operators make, in a forward, a backward or an optimizer, until their last reference is
gone. A kernel's own workspace is not seen, nor is what another thread makes.
"""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from ckpt_surgery.measure.meter import LiveBytes


class MemoryLimit(LiveBytes):  # type: ignore[no-untyped-call]
    """A reusable mode in which operators whose results exceed a limit raise torch.OutOfMemoryError.

    `live_bytes` is what is held now, `peak_bytes` the most that was: set it to 0 to measure from here. Fake tensors
    and those on "meta" are free.
    """

    def __init__(self, limit: int | None) -> None:
        super().__init__()
        self.limit = limit
        self.peak_bytes = 0

    @property
    def live_bytes(self) -> int:
        return self._bytes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        before = self._bytes
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if self.limit is None or self._bytes <= max(self.limit, before):
            self.peak_bytes = max(self.peak_bytes, self._bytes)
            return result
        asked = self._bytes - before
        del result  # the traceback would hold it
        raise torch.OutOfMemoryError(self._words(asked))

    def _track(self, func: Any, tensor: Tensor) -> None:
        if type(tensor).__name__ != "FakeTensor" and tensor.device.type == "cpu":
            super()._track(func, tensor)

    def _words(self, asked: int) -> str:
        assert self.limit is not None
        return (
            f"CUDA out of memory. Tried to allocate {_size(asked)}. GPU 0 has a total capacity of {_size(self.limit)} "
            f"of which {_size(max(0, self.limit - self._bytes))} is free. Including non-PyTorch memory, this process "
            f"has {_size(self._bytes)} memory in use. Of the allocated memory {_size(self._bytes)} is allocated by "
            "PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
        )


def limit_memory(limit: int | None) -> MemoryLimit:
    """Limit the memory of the rest of this process, in this thread; with None, only measure it."""
    memory = MemoryLimit(limit)
    opened = ExitStack()
    opened.enter_context(memory)
    atexit.register(opened.close)
    return memory


def _size(count: int) -> str:
    """Format a size as CUDACachingAllocator does."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.2f} {name}"
    return f"{count} bytes"
