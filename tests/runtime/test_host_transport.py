"""Copies to the host beside the compute: what waits for what, on a device whose streams only write it down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor

from ckpt_surgery.runtime import offload
from ckpt_surgery.runtime.offload import HostTransport, Offloader
from tests.zoo.offload_toys import BLOCKS, gradients, same

pytestmark = [pytest.mark.both, pytest.mark.torch]


class Device:
    """Stands for `torch.cuda`: it writes down what streams are asked, in order."""

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

    def wait_event(self, event: str) -> None:
        self.device.log.append(f"{self.name} waits for {event}")

    def record_event(self) -> str:
        self.device.events += 1
        self.device.log.append(f"event {self.device.events} ends {self.name}")
        return f"event {self.device.events}"


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device, empty_like, copy = Device(), torch.empty_like, Tensor.copy_

    def pinned(tensor: Tensor, *, pin_memory: bool = False, **options: Any) -> Tensor:
        if pin_memory:
            device.log.append("pinned")
        return empty_like(tensor, **options)

    def copied(tensor: Tensor, source: Tensor, **options: Any) -> Tensor:
        assert options == {"non_blocking": True}
        device.log.append("copy")
        return copy(tensor, source)

    monkeypatch.setattr(torch, "empty_like", pinned)
    monkeypatch.setattr(Tensor, "copy_", copied)
    streams = offload._SideStreams(device, torch.device("cpu"), device.new_stream(), device.new_stream())
    monkeypatch.setattr(offload, "_side_streams", lambda _: streams)
    return device


def test_memory_is_given_back_only_behind_the_copy(device: Device) -> None:
    transport = HostTransport()
    host_copy = transport.put(torch.ones(3))
    assert device.log == ["pinned", "away waits for compute", "on away", "copy", "off", "event 1 ends away"]
    transport.finish(host_copy)
    assert device.log[6:] == ["compute waits for event 1"]


def test_what_comes_back_is_used_only_behind_the_copy(device: Device) -> None:
    transport = HostTransport()
    host_copy = transport.put(torch.ones(3))
    device.log.clear()
    device_copy = transport.start(host_copy)
    began = ["back waits for compute", "back waits for event 1", "on back", "copy", "off", "event 2 ends back"]
    assert device.log == began
    assert torch.equal(transport.get(device_copy), torch.ones(3))
    assert device.log[len(began) :] == ["compute waits for event 2"]


def test_a_copy_that_nobody_got_still_ends_before_its_memory_is_used_again(device: Device) -> None:
    transport = HostTransport()
    device_copy = transport.start(transport.put(torch.ones(3)))
    device.log.clear()
    del device_copy
    assert device.log == ["compute waits for event 2"]


def test_memory_that_another_stream_uses_is_marked(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    marked: list[Stream] = []
    monkeypatch.setattr(Tensor, "record_stream", lambda tensor, stream: marked.append(stream))
    transport = HostTransport()
    host_copy = transport.put(torch.ones(3))
    transport.get(transport.start(host_copy))
    assert not marked
    device_copy = transport.start(host_copy)
    device.computing = Stream(device, "other")
    transport.get(device_copy)
    assert marked == [device.computing]
    assert "other waits for event 3" in device.log


def test_a_whole_step_gives_the_same_gradients(device: Device) -> None:
    assert same(gradients(Offloader(minimum_bytes=0)), gradients())
    moved = BLOCKS - 1
    assert device.log.count("copy") == moved + moved - 1, "the backward finds the newest of them still there"


def test_a_device_without_streams_gets_plain_copies() -> None:
    transport = HostTransport()
    source = torch.arange(6.0).view(2, 3).t()
    host_copy = transport.put(source)
    source.zero_()
    arrived = transport.get(transport.start(host_copy))
    assert torch.equal(arrived, torch.arange(6.0).view(2, 3).t())
    assert arrived.stride() == (1, 3)
    assert not host_copy.host.is_pinned()
