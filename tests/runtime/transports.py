"""Transports that make faults visible: one that writes down its calls, one whose copies happen late.

Both work on the CPU and follow the protocol of `ckpt_surgery.runtime.offload`.
"""

from __future__ import annotations

import random
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


class Recorded:
    """Copies at once, out of torch's memory, and writes down every call with the number of the put."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.flying: set[int] = set()
        self._puts = 0

    def put(self, source: Tensor) -> tuple[int, Any]:
        number, self._puts = self._puts, self._puts + 1
        self.flying.add(number)
        self.calls.append(f"put {number}")
        return number, source.numpy().copy(order="K")

    def finish(self, parcel: tuple[int, Any]) -> None:
        self.flying.discard(parcel[0])
        self.calls.append(f"finish {parcel[0]}")

    def start(self, parcel: tuple[int, Any]) -> tuple[int, Any]:
        self.calls.append(f"start {parcel[0]}")
        return parcel

    def get(self, arrival: tuple[int, Any]) -> Tensor:
        self.calls.append(f"get {arrival[0]}")
        return torch.from_numpy(arrival[1].copy(order="K"))


class Deferred:
    """Copies happen at some later call, at the latest when one has to wait for them, as on a device that lags.

    Sources are not held: the memory of one that was given back reads as NaN, as if others had it. Without a seed,
    nothing is copied before one has to wait for it.
    """

    def __init__(self, seed: int | None = 0) -> None:
        self.peak = 0
        self.parcels: weakref.WeakSet[Parcel] = weakref.WeakSet()
        self._random = None if seed is None else random.Random(seed)
        self._waiting: list[weakref.ref[Parcel | Arrival]] = []

    def put(self, source: Tensor) -> Parcel:
        parcel = Parcel(source)
        self.parcels.add(parcel)
        self._waiting.append(weakref.ref(parcel))
        self.peak = max(self.peak, sum(not parcel.finished for parcel in self.parcels))
        self._work()
        return parcel

    def finish(self, parcel: Parcel) -> None:
        self._work()
        parcel.copy()
        parcel.finished = True

    def start(self, parcel: Parcel) -> Arrival:
        arrival = Arrival(parcel, torch.full_like(parcel.host, torch.nan))
        self._waiting.append(weakref.ref(arrival))
        self._work()
        return arrival

    def get(self, arrival: Arrival) -> Tensor:
        self._work()
        arrival.copy()
        return arrival.tensor

    def _work(self) -> None:
        """Do some of the copies that wait, oldest first."""
        count = 0 if self._random is None else self._random.randrange(1 + len(self._waiting))
        for _ in range(count):
            work = self._waiting.pop(0)()
            if work is not None:
                work.copy()


@dataclass(eq=False)
class Arrival:
    parcel: Parcel
    tensor: Tensor

    def copy(self) -> None:
        self.parcel.copy()
        self.tensor.copy_(self.parcel.host)


@dataclass(eq=False)
class Parcel:
    source: Tensor | None
    host: Tensor = field(init=False)
    finished: bool = False

    def __post_init__(self) -> None:
        assert self.source is not None
        self.host = torch.full_like(self.source, torch.nan)
        self._place = self.source.storage_offset(), self.source.shape, self.source.stride()
        self._memory: weakref.ref[torch.UntypedStorage] | None = weakref.ref(self.source.untyped_storage())
        self.source = None

    def copy(self) -> None:
        memory = self._memory() if self._memory is not None else None
        self._memory = None
        if memory is not None:
            self.host.copy_(torch.empty(0, dtype=self.host.dtype).set_(memory, *self._place))
