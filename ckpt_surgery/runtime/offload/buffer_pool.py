"""Lend buffers outside the device, reused from step to step: the base class of all pools, and the one of host memory.

Host memory is pinned up to a limit and pageable beyond it; none is taken where the host has little left.
"""

from __future__ import annotations

import mmap
import os
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import torch
from torch import Tensor

from ckpt_surgery.errors import SurgeryWarning
from ckpt_surgery.runtime.offload.host_memory import HostMemory, processes_on_host
from ckpt_surgery.text import size as in_words

_LARGEST_FIT = 2
"""A buffer may be this many times as large as what it is lent for: lengths change from step to step."""
_KEPT_STEPS = 2
"""A buffer that was not used for more steps than this is freed."""
_PINNED_SHARE = 0.5
"""The default limit on pinned memory, as a share of what is free at the first use."""
_PINNED_UNKNOWN = 4 * 2**30
"""The default limit in bytes if it is not known what is free."""
_LEFT_ALONE = 0.05
"""The share of the host's memory that offload leaves free."""
_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every device."""
_SLOW = "further block inputs go to pageable memory, where each copy holds up the step"
_NONE_LEFT = (
    "the host has too little memory left for offload: block inputs stay on the device; give a folder, or "
    '"disk", as offload'
)


Shortage = Literal["pinned memory", "host memory", "folder", "disk"]
"""What is lacking: memory that may be pinned, host memory at all, room in the folder, or a folder on a disk."""


class Buffer:
    """A buffer of `bytes`, in the process that made it.

    `memory` is a tensor of dtype uint8 and one dimension. `events` are the ends of the copies into it and out of it
    that may still be under way. `release`, if given, is called before the memory is freed.
    """

    def __init__(self, memory: Tensor, *, pinned: bool = False, release: Callable[[], None] | None = None) -> None:
        self.memory = memory
        self.bytes = memory.numel()
        self.pinned = pinned
        self.events: tuple[Any, ...] = ()
        self.process = os.getpid()
        self.used_in_step = 0
        self._release = release

    def laid_out_as(self, source: Tensor) -> Tensor:
        """Return a tensor in this memory with the shape, dtype and order of strides of `source`."""
        stride = torch.empty_like(source, device="meta").stride()
        return self.memory[: source.nbytes].view(source.dtype).as_strided(source.shape, stride)

    def __del__(self) -> None:
        if self.process != os.getpid() or sys.is_finalizing():
            return  # a forked process has no device, and at exit memory goes anyway
        for event in self.events:
            event.synchronize()
        if self._release is not None:
            self._release()


class BufferPool:
    """A pool of lent buffers; each of its `shortages` is warned of once, as a SurgeryWarning.

    A step is the time between two moments at which nothing is lent. Only `give_back` may be called from several
    threads at once, or while the pool is at work: a finalizer does so.
    """

    def __init__(self) -> None:
        self.shortages: set[Shortage] = set()
        self._buffers: weakref.WeakSet[Buffer] = weakref.WeakSet()
        self._idle: list[Buffer] = []
        self._returned: deque[Buffer] = deque()
        self._keeps = True
        self._step = 0

    @property
    def bytes(self) -> int:
        """The bytes of all buffers, lent and idle."""
        return sum(buffer.bytes for buffer in self._buffers)

    @property
    def lent(self) -> int:
        """The number of lent buffers."""
        return len(self._buffers) - len(self._idle) - len(self._returned)

    def take(self, size: int, device: torch.device) -> Buffer | None:
        """Lend a buffer of at least `size` bytes for copies from `device`; None if the store has no room."""
        self._keeps = True
        self._collect()
        fitting = [buffer for buffer in self._idle if size <= buffer.bytes <= _LARGEST_FIT * size]
        if fitting:
            # the largest rather than the closest: so buffers for the greatest length come to serve all lengths
            buffer = max(fitting, key=lambda buffer: (buffer.pinned, buffer.bytes == size, buffer.bytes))
            self._idle.remove(buffer)
        elif (made := self._make(size, device)) is not None:
            buffer = made
            self._buffers.add(buffer)
        else:
            return None
        buffer.used_in_step = self._step
        return buffer

    def give_back(self, buffer: Buffer) -> None:
        """Return a lent buffer."""
        if self._keeps:
            self._returned.append(buffer)

    def release(self) -> None:
        """Free idle buffers, and lent ones as they come back, until the next buffer is taken."""
        self._keeps = False
        self._returned.clear()
        self._idle.clear()

    def _make(self, size: int, device: torch.device) -> Buffer | None:
        """Make a new buffer of `size` bytes; None if there is no room."""
        raise NotImplementedError

    def _warn_once(self, shortage: Shortage, words: str) -> None:
        if shortage not in self.shortages:
            self.shortages.add(shortage)
            warnings.warn(words, SurgeryWarning, stacklevel=2)

    def _free_idle(self, enough: Callable[[], bool], which: Callable[[Buffer], bool] = lambda buffer: True) -> bool:
        """Free idle buffers, the longest unused first, until there is enough room; tell whether there is."""
        candidates = sorted(filter(which, self._idle), key=lambda buffer: buffer.used_in_step, reverse=True)
        while not enough():
            if not candidates:
                return False
            self._idle.remove(candidates.pop())
        return True

    def _collect(self) -> None:
        """Take in returned buffers, and free those no longer used."""
        any_returned = bool(self._returned)
        while self._returned:
            self._idle.append(self._returned.popleft())
        # after a fork, parent and child would write into the same file
        self._idle = [buffer for buffer in self._idle if buffer.process == os.getpid()]
        if any_returned and not self.lent:
            self._step += 1
            self._idle = [buffer for buffer in self._idle if buffer.used_in_step >= self._step - _KEPT_STEPS]


class PinnedPool(BufferPool):
    """Buffers in host memory.

    At most `limit` bytes are pinned: by default half of what is free at the first use, divided by the processes of
    this training on the host. Beyond that, or once the host refuses to pin, buffers are pageable; and if 5 % of the
    host's memory or less would be left, there are none. `pin` makes pinned buffers and raises RuntimeError or OSError;
    `memory` says what the host has. Copies and pickles have the limit alone.
    """

    def __init__(
        self,
        limit: int | None = None,
        *,
        pin: Callable[[int, torch.device], Buffer] | None = None,
        memory: Callable[[], HostMemory | None] = HostMemory.now,
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
        """The most bytes that may be pinned."""
        if self._limit is None:
            memory = self._memory()
            free = _PINNED_UNKNOWN if memory is None else int(memory.free * _PINNED_SHARE)
            self._limit = free // processes_on_host()
        return self._limit

    @property
    def pinned_bytes(self) -> int:
        """The bytes pinned now, lent and idle."""
        return sum(buffer.bytes for buffer in self._buffers if buffer.pinned)

    def _make(self, size: int, device: torch.device) -> Buffer | None:
        limit = self.limit  # read first: it may be a share of what is free now
        if not self._free_idle(lambda: self._host_has(size)):
            self._warn_once("host memory", _NONE_LEFT)
            return None
        if limit >= size and self._free_idle(lambda: self.pinned_bytes <= limit - size, self._is_unused):
            try:
                return self._pin(size, device)
            except (RuntimeError, OSError) as error:
                self._limit = self.pinned_bytes  # what is pinned stays in use; asking again is slow, and in vain
                if limit:
                    words = (
                        f"the host pins no more than {in_words(self.pinned_bytes)} ({type(error).__name__}): {_SLOW}"
                    )
                    self._warn_once("pinned memory", words)
        elif limit:
            words = f"offload has pinned the {in_words(limit)} that it may: {_SLOW}, unless offload_pinned allows more"
            self._warn_once("pinned memory", words)
        try:
            return Buffer(torch.empty(size, dtype=torch.uint8, device="cpu"))
        except (RuntimeError, MemoryError):
            self._warn_once("host memory", _NONE_LEFT)
            return None

    def _is_unused(self, buffer: Buffer) -> bool:
        """Tell whether a pinned buffer was not used in the last step."""
        return buffer.pinned and buffer.used_in_step < self._step - 1

    def _host_has(self, size: int) -> bool:
        """Tell whether the host has `size` bytes for each process of this training, with some to spare."""
        memory = self._memory()
        return memory is None or memory.free - size * processes_on_host() >= memory.total * _LEFT_ALONE


def pinned_buffer(size: int, device: torch.device) -> Buffer:
    """Make a pinned buffer of exactly `size` bytes. Raises RuntimeError or OSError if the host has no more.

    torch's own allocator of pinned memory rounds up to a power of two and gives nothing back. On CUDA and ROCm, this
    pins its own pages instead, and unpins them when the buffer goes.
    """
    if device.type != "cuda":
        return Buffer(torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True), pinned=True)
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    return registered_buffer(size, device, runtime)


def registered_buffer(size: int, device: torch.device, runtime: Any) -> Buffer:
    """Make a buffer in new pages, pinned by CUDA's runtime. Raises RuntimeError or OSError."""
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
    """Launch a kernel to clear CUDA's last error, which the next kernel would raise otherwise."""
    with suppress(RuntimeError):
        torch.ones(1, device=device)
