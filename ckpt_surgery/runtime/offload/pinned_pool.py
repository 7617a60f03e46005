"""Pinned host memory, up to a bound; pageable beyond it, and none where the host has little left."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from ckpt_surgery.runtime.offload.buffer_pool import Buffer, BufferPool, Shortage
from ckpt_surgery.runtime.offload.host_memory import HostMemory, host_memory, processes_on_host
from ckpt_surgery.text import size as in_words

_PINNED_SHARE = 0.5
"""The bound on pinned memory where none is given, as a share of what is free at the first use."""
_PINNED_UNKNOWN = 4 * 2**30
"""That bound in bytes where it is not known what is free."""
_LEFT_ALONE = 0.05
"""The share of all memory of the host that is left to others."""
_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every device."""
_THEN = "further block inputs go to pageable memory, where each copy holds up the step"
_NONE_LEFT = (
    "the host has too little memory left for offload: block inputs stay on the device; give a folder, or "
    '"disk", as offload'
)


class PinnedPool(BufferPool):
    """Buffers in host memory.

    At most `limit` bytes are pinned: by default half of what is free at the first use, divided by the processes of
    this training on the host. Beyond that, or once the host refuses to pin, buffers are pageable; and where 5 % of the
    host's memory or less would be left, there are none. `pin` makes pinned buffers and raises RuntimeError or OSError;
    `memory` says what the host has. Copies and pickles have the limit alone.
    """

    def __init__(
        self,
        limit: int | None = None,
        *,
        pin: Callable[[int, torch.device], Buffer] | None = None,
        memory: Callable[[], HostMemory | None] = host_memory,
    ) -> None:
        super().__init__()
        self.given_limit = limit
        self._limit = limit
        self._pin = pinned_buffer if pin is None else pin
        self._memory = memory

    def __reduce__(self) -> tuple[Any, ...]:
        return PinnedPool, (self.given_limit,)

    @property
    def limit(self) -> int:
        """Return the most bytes that may be pinned."""
        if self._limit is None:
            memory = self._memory()
            free = _PINNED_UNKNOWN if memory is None else int(memory.free * _PINNED_SHARE)
            self._limit = free // processes_on_host()
        return self._limit

    @property
    def pinned_bytes(self) -> int:
        """Count the bytes that are pinned now, lent and idle."""
        return sum(buffer.bytes for buffer in self._buffers if buffer.pinned)

    def _make(self, size: int, device: torch.device) -> Buffer | None:
        limit = self.limit  # a share of what is free before anything is taken
        if not self._free_idle(lambda: self._host_has(size)):
            self._say(Shortage.HOST, _NONE_LEFT)
            return None
        if limit >= size and self._free_idle(lambda: self.pinned_bytes <= limit - size, self._is_unused):
            try:
                return self._pin(size, device)
            except (RuntimeError, OSError) as error:
                self._limit = self.pinned_bytes  # what is pinned serves on; asking for more is slow, and in vain
                if limit:
                    words = (
                        f"the host pins no more than {in_words(self.pinned_bytes)} ({type(error).__name__}): {_THEN}"
                    )
                    self._say(Shortage.REFUSED, words)
        elif limit and Shortage.REFUSED not in self.shortages:
            words = f"offload has pinned the {in_words(limit)} that it may: {_THEN}, unless offload_pinned allows more"
            self._say(Shortage.BOUND, words)
        try:
            return Buffer(torch.empty(size, dtype=torch.uint8, device="cpu"))
        except (RuntimeError, MemoryError):
            self._say(Shortage.HOST, _NONE_LEFT)
            return None

    def _is_unused(self, buffer: Buffer) -> bool:
        """Tell whether a pinned buffer was not used in the last step."""
        return buffer.pinned and buffer.used_in_step < self._step - 1

    def _host_has(self, size: int) -> bool:
        """Tell whether the host has so many bytes for each process of this training, and some for others."""
        memory = self._memory()
        return memory is None or memory.free - size * processes_on_host() >= memory.total * _LEFT_ALONE


def pinned_buffer(size: int, device: torch.device) -> Buffer:
    """Make a pinned buffer of exactly `size` bytes. Raises RuntimeError or OSError where the host has no more.

    torch's own allocator of pinned memory rounds up to a power of two and gives nothing back. On CUDA and ROCm, pages
    of our own are pinned instead, and unpinned when the buffer goes.
    """
    if device.type != "cuda":
        return Buffer(torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True), pinned=True)
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    return registered_buffer(size, device, runtime)


def registered_buffer(size: int, device: torch.device, runtime: Any) -> Buffer:
    """Make a buffer in pages of its own, pinned by CUDA's runtime. Raises RuntimeError or OSError."""
    pages = mmap.mmap(-1, size, **({"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if os.name == "posix" else {}))
    if hasattr(mmap, "MADV_DONTFORK"):
        pages.madvise(mmap.MADV_DONTFORK)  # a forked process would copy them, or have the device write elsewhere
    memory = torch.frombuffer(pages, dtype=torch.uint8)
    address = memory.data_ptr()
    error = int(runtime.cudaHostRegister(address, size, _PORTABLE))
    if error:
        forget_error(device)
        raise RuntimeError(f"cudaHostRegister returned {error}")
    return Buffer(memory, pinned=True, release=lambda: runtime.cudaHostUnregister(address))


def forget_error(device: torch.device) -> None:
    """Launch a kernel: CUDA keeps the last error, and the next kernel raises it, which is this one."""
    with suppress(RuntimeError):
        torch.ones(1, device=device)
