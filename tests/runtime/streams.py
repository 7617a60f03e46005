"""Fakes of an accelerator: streams that log or are late, and a host that pins."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from ckpt_surgery.runtime.offload import host_transport
from ckpt_surgery.runtime.offload.buffer_pool import Buffer
from ckpt_surgery.runtime.offload.host_memory import HostMemory

_COPY = Tensor.copy_
PLENTY = HostMemory(free=10**12, total=10**12)


class Device:
    """A fake `torch.cuda` that logs what streams are asked, in order. Copies happen at once."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.events = 0
        self.names = iter(("compute", "away", "back"))
        self.computing = self.new_stream()

    def new_stream(self) -> Stream:
        return Stream(self, next(self.names))

    def current_stream(self, device: Any) -> Stream:
        return self.computing

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self.log.append(f"on {stream.name}")
        yield
        self.log.append("off")


class Stream:
    def __init__(self, device: Device, name: str) -> None:
        self.device, self.name = device, name

    def wait_stream(self, other: Stream) -> None:
        self.device.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: Event) -> None:
        self.device.log.append(f"{self.name} waits for {event.name}")

    def record_event(self) -> Event:
        self.device.events += 1
        event = Event(self.device, f"event {self.device.events}")
        self.device.log.append(f"{event.name} ends {self.name}")
        return event


@dataclass
class Event:
    device: Device
    name: str

    def synchronize(self) -> None:
        self.device.log.append(f"host waits for {self.name}")


def instead_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> Device:
    """Pass tensors on the processor off as tensors on a device with streams."""
    device, copy = Device(), Tensor.copy_

    def copied(tensor: Tensor, source: Tensor, **options: Any) -> Tensor:
        assert options == {"non_blocking": True}
        device.log.append("copy")
        return copy(tensor, source)

    monkeypatch.setattr(Tensor, "copy_", copied)
    streams = host_transport.SideStreams(device, torch.device("cpu"), device.new_stream(), device.new_stream())
    monkeypatch.setattr(host_transport.HostTransport, "_side_streams", lambda self, device: streams)
    return device


class LateStream:
    """A side stream whose copies happen when something waits for them; without `computing`, the compute stream's.

    Memory that was given back meanwhile is not there any more: what is copied from it is NaN.
    """

    computing = True

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def wait_stream(self, other: LateStream) -> None:
        assert other.computing, "what was computed is there already"

    def wait_event(self, event: LateEvent) -> None:
        if self.computing:
            event.synchronize()
        else:
            self.waiting.append(event.synchronize)

    def record_event(self) -> LateEvent:
        return LateEvent(self, len(self.waiting))

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Note a copy, and hold nothing for it."""
        ends = [weakref.ref(tensor.untyped_storage()) for tensor in (target, source)]
        places = [(tensor.storage_offset(), tensor.shape, tensor.stride()) for tensor in (target, source)]
        kind = source.dtype

        def late() -> None:
            held = [end() for end in ends]
            if held[0] is None:
                return
            into, out_of = (
                None if storage is None else torch.empty(0, dtype=kind).set_(storage, *place)
                for storage, place in zip(held, places, strict=True)
            )
            assert into is not None
            _COPY(into, torch.full_like(into, torch.nan) if out_of is None else out_of)

        self.waiting.append(late)


@dataclass
class LateEvent:
    stream: LateStream
    end: int

    def synchronize(self) -> None:
        for place in range(self.end):
            work, self.stream.waiting[place] = self.stream.waiting[place], _nothing
            work()


class LateDevice:
    """A fake `torch.cuda` whose host is far ahead of all copies."""

    def __init__(self) -> None:
        self.computing = LateStream()
        self.current = self.computing

    def current_stream(self, device: Any) -> LateStream:
        return self.computing

    @contextmanager
    def stream(self, stream: LateStream) -> Iterator[None]:
        self.current = stream
        yield
        self.current = self.computing

    def side_stream(self) -> LateStream:
        stream = LateStream()
        stream.computing = False
        return stream


def late_instead_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pass tensors on the processor off as tensors on a device whose copies are late."""
    device = LateDevice()

    def copied(tensor: Tensor, source: Tensor, **options: Any) -> Tensor:
        assert options == {"non_blocking": True}
        device.current.copy(tensor.fill_(torch.nan), source)
        return tensor

    monkeypatch.setattr(Tensor, "copy_", copied)
    streams = host_transport.SideStreams(device, torch.device("cpu"), device.side_stream(), device.side_stream())
    monkeypatch.setattr(host_transport.HostTransport, "_side_streams", lambda self, device: streams)


def _nothing() -> None:
    return None


class Pinning:
    """A host that pins up to `most` bytes and then fails. `sizes` are the requests."""

    def __init__(self, most: int = 10**9) -> None:
        self.most = most
        self.pinned = 0
        self.sizes: list[int] = []

    def __call__(self, size: int, device: torch.device) -> Buffer:
        self.sizes.append(size)
        if self.pinned + size > self.most:
            raise RuntimeError("CUDA error: out of memory")
        self.pinned += size
        return Buffer(torch.empty(size, dtype=torch.uint8), pinned=True, release=lambda: self._unpin(size))

    def _unpin(self, size: int) -> None:
        self.pinned -= size
