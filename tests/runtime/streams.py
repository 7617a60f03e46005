"""Fakes of an accelerator: streams that log or are late, and a host that pins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from ckpt_surgery.runtime.offload import host_transport
from ckpt_surgery.runtime.offload.buffer_pool import Buffer
from ckpt_surgery.runtime.offload.host_memory import HostMemory

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
