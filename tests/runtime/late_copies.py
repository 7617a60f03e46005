"""A store of an offloader whose copies happen late, on the CPU: what is used too early shows in the values."""

from __future__ import annotations

import random
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ckpt_surgery.runtime.offload.host_transport import HostTransport


class Deferred(HostTransport):
    """A device that lags: copies happen at some later call, at the latest when one has to wait for them.

    Sources are not held: the memory of one that was given back reads as NaN, as if others had it. Without a seed,
    nothing is copied before one has to wait for it.
    """

    def __init__(self, seed: int | None = 0) -> None:
        self.peak = 0
        self._seed = seed
        self.host_copies: weakref.WeakSet[HostCopy] = weakref.WeakSet()
        self._random = None if seed is None else random.Random(seed)
        self._waiting: list[weakref.ref[HostCopy | DeviceCopy]] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._seed,)

    def put(self, source: Tensor) -> Any:
        host_copy = HostCopy(source)
        self.host_copies.add(host_copy)
        self._waiting.append(weakref.ref(host_copy))
        self.peak = max(self.peak, sum(not host_copy.finished for host_copy in self.host_copies))
        self._work()
        return host_copy

    def finish(self, host_copy: Any) -> None:
        self._work()
        host_copy.copy()
        host_copy.finished = True

    def start(self, host_copy: Any) -> Any:
        device_copy = DeviceCopy(host_copy, _nothing_like(host_copy.host))
        self._waiting.append(weakref.ref(device_copy))
        self._work()
        return device_copy

    def get(self, device_copy: Any) -> Tensor:
        self._work()
        device_copy.copy()
        tensor: Tensor = device_copy.tensor
        return tensor

    def release(self) -> None:
        """Do nothing: nothing is held."""

    def _work(self) -> None:
        """Do some of the copies that wait, oldest first."""
        count = 0 if self._random is None else self._random.randrange(1 + len(self._waiting))
        for _ in range(count):
            work = self._waiting.pop(0)()
            if work is not None:
                work.copy()


@dataclass(eq=False)
class DeviceCopy:
    """A copy back, made by `copy`; until then it is NaN."""

    host_copy: HostCopy
    tensor: Tensor

    def copy(self) -> None:
        self.host_copy.copy()
        self.tensor.copy_(self.host_copy.host)


@dataclass(eq=False)
class HostCopy:
    """A copy of `source`, made by `copy` if its memory still exists; until then it is NaN."""

    source: Tensor | None
    host: Tensor = field(init=False)
    finished: bool = False

    def __post_init__(self) -> None:
        assert self.source is not None
        self.host = _nothing_like(self.source)
        self._place = self.source.storage_offset(), self.source.shape, self.source.stride()
        self._memory: weakref.ref[torch.UntypedStorage] | None = weakref.ref(self.source.untyped_storage())
        self.source = None

    def copy(self) -> None:
        memory = self._memory() if self._memory is not None else None
        self._memory = None
        if memory is not None:
            self.host.copy_(torch.empty(0, dtype=self.host.dtype).set_(memory, *self._place))


def _nothing_like(tensor: Tensor) -> Tensor:
    """Return values that show where nothing was copied yet."""
    return torch.full_like(tensor, torch.nan if tensor.is_floating_point() else 1)
