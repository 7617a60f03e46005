"""Copies to the host beside the compute: their order, on a device whose streams only log."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.runtime.offload.buffer_pool import PinnedPool
from ckpt_surgery.runtime.offload.host_transport import HostCopy, HostTransport
from ckpt_surgery.runtime.offload.offloader import Offloader
from tests.runtime.streams import (
    PLENTY,
    Device,
    Pinning,
    Stream,
    instead_of_the_processor,
)
from tests.zoo.offload_toys import BLOCKS, gradients, same

pytestmark = [pytest.mark.both, pytest.mark.torch]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return instead_of_the_processor(monkeypatch)


def pinning(most: int = 10**9) -> HostTransport:
    return HostTransport(PinnedPool(10**9, pin=Pinning(most), memory=lambda: PLENTY))


def put(transport: HostTransport, source: Tensor) -> HostCopy:
    host_copy = transport.put(source)
    assert host_copy is not None
    return host_copy


def test_memory_is_given_back_only_behind_the_copy(device: Device) -> None:
    transport = pinning()
    host_copy = put(transport, torch.ones(3))
    assert device.log == ["away waits for compute", "on away", "copy", "off", "event 1 ends away"]
    transport.finish(host_copy)
    assert device.log[5:] == ["compute waits for event 1"]


def test_what_comes_back_is_used_only_behind_the_copy(device: Device) -> None:
    transport = pinning()
    host_copy = put(transport, torch.ones(3))
    device.log.clear()
    device_copy = transport.start(host_copy)
    began = ["back waits for compute", "back waits for event 1", "on back", "copy", "off", "event 2 ends back"]
    assert device.log == began
    assert torch.equal(transport.get(device_copy), torch.ones(3))
    assert device.log[len(began) :] == ["compute waits for event 2"]


def test_a_copy_that_nobody_got_still_ends_before_its_memory_is_used_again(device: Device) -> None:
    transport = pinning()
    device_copy = transport.start(put(transport, torch.ones(3)))
    device.log.clear()
    del device_copy
    assert device.log == ["compute waits for event 2"]


def test_memory_that_another_stream_uses_is_marked(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    marked: list[Stream] = []
    monkeypatch.setattr(Tensor, "record_stream", lambda tensor, stream: marked.append(stream))
    transport = pinning()
    host_copy = put(transport, torch.ones(3))
    transport.get(transport.start(host_copy))
    assert not marked
    device_copy = transport.start(host_copy)
    device.computing = Stream(device, "other")
    transport.get(device_copy)
    assert marked == [device.computing]
    assert "other waits for event 3" in device.log


def test_a_whole_step_gives_the_same_gradients(device: Device) -> None:
    assert same(gradients(Offloader(pinning(), minimum_bytes=0)), gradients())
    moved = BLOCKS - 1
    assert device.log.count("copy") == moved + moved - 1, "the backward finds the newest of them still there"


def test_a_buffer_is_written_again_only_behind_the_copies_that_read_it(device: Device) -> None:
    transport = pinning()
    host_copy = put(transport, torch.ones(3))
    transport.get(transport.start(host_copy))
    buffer = host_copy.buffer
    del host_copy
    device.log.clear()
    again = put(transport, torch.ones(3))
    assert again.buffer is buffer
    assert device.log[:4] == ["away waits for compute", "away waits for event 1", "away waits for event 2", "on away"]


def test_a_buffer_is_freed_only_behind_the_copies_that_use_it(device: Device) -> None:
    transport = pinning()
    host_copy = put(transport, torch.ones(3))
    transport.start(host_copy)
    transport.release()
    device.log.clear()
    del host_copy
    assert device.log == ["host waits for event 1", "host waits for event 2"]


def test_another_process_cannot_read_what_this_one_may_write_again(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = pinning()
    host_copy = put(transport, torch.ones(3))
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(SurgeryError, match="a forked process ran the backward"):
        transport.start(host_copy)
    del host_copy
    assert put(transport, torch.ones(3)).buffer is not None
    assert transport.pool.lent == 0 or len(transport.pool._idle) == 0, "the parent's buffer is not lent"


def test_tensors_without_data_take_no_buffer(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = pinning()
    monkeypatch.undo()
    with FakeTensorMode():
        host_copy = put(transport, torch.ones(3))
    assert host_copy.buffer is None
    assert transport.pool.bytes == 0
