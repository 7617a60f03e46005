"""Memory outside the device, by exact sizes and used again over the steps: what every store of an offloader has."""

from __future__ import annotations

import os
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import torch
from torch import Tensor

from ckpt_surgery.errors import SurgeryWarning

_LARGEST_FIT = 2
"""A buffer takes no tensor of less than this part of its size: lengths change from step to step."""
_KEPT_STEPS = 2
"""A buffer that nothing used in so many steps is given back."""


class Shortage(Enum):
    """A reason why memory is not pinned, slow, or not taken at all."""

    BOUND = auto()
    """All is pinned that may be."""
    REFUSED = auto()
    """The host pins no more."""
    HOST = auto()
    """The host has too little memory left."""
    FOLDER = auto()
    """The disk has no room."""
    IN_MEMORY = auto()
    """The folder is in memory itself."""


class Buffer:
    """So many bytes, in the process that made them.

    `memory` is a tensor of dtype uint8 and one dimension. `events` are the ends of the copies into it and out of it
    that may still be under way. `release` is called, if given, before the memory goes.
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
            return  # a fork's copy has no device, and memory ends with its process
        for event in self.events:
            event.synchronize()
        if self._release is not None:
            self._release()


class BufferPool:
    """Buffers that are lent and come back; each of its `shortages` was said once, as a SurgeryWarning.

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
        """Count the bytes of all buffers, lent and idle."""
        return sum(buffer.bytes for buffer in self._buffers)

    @property
    def lent(self) -> int:
        """Count the buffers that are lent."""
        return len(self._buffers) - len(self._idle) - len(self._returned)

    def take(self, size: int, device: torch.device) -> Buffer | None:
        """Lend a buffer of at least `size` bytes for copies from `device`; None where the store has no room."""
        self._keeps = True
        self._collect()
        fitting = [buffer for buffer in self._idle if size <= buffer.bytes <= _LARGEST_FIT * size]
        if fitting:
            # else the largest: where lengths change, the buffers of the longest come to serve all of them
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
        """End a loan."""
        if self._keeps:
            self._returned.append(buffer)

    def release(self) -> None:
        """Free what is idle, and what is lent as soon as it comes back, until the next buffer is taken."""
        self._keeps = False
        self._returned.clear()
        self._idle.clear()

    def _make(self, size: int, device: torch.device) -> Buffer | None:
        """Make a new buffer of `size` bytes; None where there is no room."""
        raise NotImplementedError

    def _say(self, shortage: Shortage, words: str) -> None:
        if shortage not in self.shortages:
            self.shortages.add(shortage)
            warnings.warn(words, SurgeryWarning, stacklevel=2)

    def _free_idle(self, enough: Callable[[], bool], which: Callable[[Buffer], bool] = lambda buffer: True) -> bool:
        """Free idle buffers, those unused for longest first, until that is enough; tell whether it ever was."""
        candidates = sorted(filter(which, self._idle), key=lambda buffer: buffer.used_in_step, reverse=True)
        while not enough():
            if not candidates:
                return False
            self._idle.remove(candidates.pop())
        return True

    def _collect(self) -> None:
        """Take in what came back, and free what is not used any more."""
        whole = bool(self._returned)
        while self._returned:
            self._idle.append(self._returned.popleft())
        # after a fork, parent and child would write into the same file
        self._idle = [buffer for buffer in self._idle if buffer.process == os.getpid()]
        if whole and not self.lent:
            self._step += 1
            self._idle = [buffer for buffer in self._idle if buffer.used_in_step >= self._step - _KEPT_STEPS]
