"""Pinned memory: exactly what is needed, reused, never above its bound, and what happens without more."""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from ckpt_surgery.errors import SurgeryWarning
from ckpt_surgery.runtime.offload import buffer_pool
from ckpt_surgery.runtime.offload.buffer_pool import PinnedPool, registered_buffer
from ckpt_surgery.runtime.offload.host_memory import HostMemory
from ckpt_surgery.runtime.offload.host_transport import HostTransport
from ckpt_surgery.runtime.offload.offloader import Offloader
from tests.runtime.streams import PLENTY, Device, Pinning, instead_of_the_processor
from tests.zoo.offload_toys import BLOCKS, INPUT_BYTES, gradients, same, trained

pytestmark = [pytest.mark.both, pytest.mark.torch]

CPU = torch.device("cpu")
MOVED = BLOCKS - 1


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return instead_of_the_processor(monkeypatch)


def pool_of(limit: int | None = None, pin: Pinning | None = None, **options: Any) -> PinnedPool:
    return PinnedPool(limit, pin=pin or Pinning(), **{"memory": lambda: PLENTY, **options})


def test_as_many_bytes_are_pinned_as_leave_the_device_and_are_reused(device: Device) -> None:
    offloader = Offloader(HostTransport(pool := pool_of(pin=(pin := Pinning()))), minimum_bytes=0)
    for _ in range(3):
        assert same(gradients(offloader), gradients())
    assert pin.sizes == [INPUT_BYTES] * MOVED
    assert pool.pinned_bytes == MOVED * INPUT_BYTES
    offloader.release()
    assert (pin.pinned, pool.bytes) == (0, 0)
    assert same(gradients(offloader), gradients())
    assert pin.pinned == MOVED * INPUT_BYTES


@pytest.mark.parametrize("inputs", [0, 1, 3])
def test_beyond_its_bound_memory_is_pageable(inputs: int, device: Device) -> None:
    pool = pool_of(inputs * INPUT_BYTES + 1, pin := Pinning())
    offloader = Offloader(HostTransport(pool), minimum_bytes=0)
    with pytest.warns(SurgeryWarning, match=r"offload has pinned the .* that it may: .*pageable") as caught:
        steps = trained(offloader, 3)
    assert len(caught) == 1
    assert all(same(step, gradients()) for step in steps)
    assert pool.pinned_bytes == pin.pinned == inputs * INPUT_BYTES
    assert pool.bytes == MOVED * INPUT_BYTES, "pageable memory is used again too"
    assert offloader.stats.tensors == 3 * MOVED


def test_no_pinned_memory_can_be_asked_for_without_a_word(device: Device) -> None:
    pool = pool_of(0, pin := Pinning())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(gradients(Offloader(HostTransport(pool), minimum_bytes=0)), gradients())
    assert (pin.sizes, pool.pinned_bytes) == ([], 0)


@pytest.mark.parametrize("inputs", [0, 2])
def test_a_host_that_pins_no_more_is_asked_once(inputs: int, device: Device) -> None:
    pool = pool_of(None, pin := Pinning(inputs * INPUT_BYTES))
    offloader = Offloader(HostTransport(pool), minimum_bytes=0)
    with pytest.warns(SurgeryWarning, match=r"the host pins no more than .* \(RuntimeError\): .*pageable") as caught:
        steps = trained(offloader, 3)
    assert len(caught) == 1
    assert all(same(step, gradients()) for step in steps)
    assert len(pin.sizes) == inputs + 1
    assert pool.shortages == {"pinned memory"}
    assert offloader.stats.no_room == 0


def test_where_the_host_is_short_inputs_stay_on_the_device(device: Device) -> None:
    free = iter([10**6, *[60 + 2 * INPUT_BYTES] * 2])
    pool = pool_of(10**6, memory=lambda: HostMemory(next(free, 60), 1000))
    offloader = Offloader(HostTransport(pool), minimum_bytes=0)
    with pytest.warns(SurgeryWarning, match=r"too little memory left for offload: block inputs stay") as caught:
        steps = trained(offloader, 2)
    assert len(caught) == 1
    assert all(same(step, gradients()) for step in steps)
    assert offloader.stats.no_room > 0
    assert offloader.stats.tensors + offloader.stats.no_room == 2 * MOVED
    assert offloader.stats.kept == 2 + offloader.stats.no_room


def test_where_memory_cannot_be_had_at_all_inputs_stay_too(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*size: Any, **options: Any) -> Any:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    pool = pool_of(0)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", none_left)
        with pytest.warns(SurgeryWarning, match="stay on the device"):
            assert pool.take(100, CPU) is None
    assert pool.take(100, CPU) is not None


@pytest.mark.parametrize(("ranks", "limit"), [("", 500), ("4", 125)])
def test_by_default_a_share_of_what_is_free_is_pinned(ranks: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert PinnedPool(memory=lambda: HostMemory(1000, 2000)).limit == limit
    assert PinnedPool(memory=lambda: None).limit == 4 * 2**30 // max(int(ranks or 1), 1)
    assert PinnedPool(7).limit == 7


def test_the_share_of_others_on_the_host_is_left_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = HostMemory(free=1000, total=1000)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.warns(SurgeryWarning, match="too little"):
        assert pool_of(10**6, memory=lambda: memory).take(240, CPU) is None
    assert pool_of(10**6, memory=lambda: memory).take(237, CPU) is not None


def step(pool: PinnedPool, *sizes: int) -> list[int]:
    """Take buffers of these sizes, and give all of them back. Returns the bytes of each."""
    taken = [pool.take(size, CPU) for size in sizes]
    bytes_of = [buffer.bytes for buffer in taken if buffer is not None]
    for buffer in taken:
        assert buffer is not None
        pool.give_back(buffer)
    return bytes_of


def test_a_buffer_takes_what_fills_half_of_it_or_more() -> None:
    pool = pool_of()
    assert step(pool, 100) == step(pool, 60) == step(pool, 50) == [100]
    assert step(pool, 49) == [49]
    assert step(pool, 101) == [101]


def test_what_two_steps_did_not_use_is_freed() -> None:
    pool = pool_of()
    step(pool, 10, 1000)
    for _ in range(2):
        step(pool, 10)
    assert pool.bytes == 1010
    step(pool, 10)
    assert pool.bytes == 10


def test_where_the_host_is_short_the_oldest_idle_memory_makes_room() -> None:
    pool = pool_of(10**6)
    pool._memory = lambda: HostMemory(1000 - pool.bytes, 1000)
    step(pool, 600)
    step(pool, 250)
    assert step(pool, 640) == [640]
    assert pool.bytes == 250 + 640
    assert not pool.shortages


def test_lengths_that_change_pin_no_more_and_more() -> None:
    pool, chance = pool_of(pin=(pin := Pinning())), random.Random(0)
    for number in range(200):
        step(pool, *[chance.randrange(500, 1000)] * 10)
        assert pool.bytes <= 3 * 10 * 1000
        if number == 100:
            pin.sizes.clear()
    assert pool.lent == 0
    assert len(pin.sizes) <= 10, "the buffers of the longest serve all"


@pytest.mark.parametrize("broken", [False, True], ids=["by the process", "broken: whoever made it"])
def test_a_forked_process_shares_no_buffer(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of()
    step(pool, 10)
    (theirs,) = pool._buffers
    if not broken:
        monkeypatch.setattr(os, "getpid", lambda: -1)
    ours = pool.take(10, CPU)
    assert (ours is theirs) is broken
    assert ours is not None
    assert (ours.memory.data_ptr() == theirs.memory.data_ptr()) is broken


class Runtime:
    """A fake of CUDA's runtime."""

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.registered: dict[int, int] = {}

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        if not self.error:
            self.registered[address] = size
        return self.error

    def cudaHostUnregister(self, address: int) -> int:
        del self.registered[address]
        return 0


def test_pages_of_our_own_are_pinned_and_unpinned() -> None:
    buffer = registered_buffer(5000, CPU, runtime := Runtime())
    assert runtime.registered == {buffer.memory.data_ptr(): 5000}
    assert buffer.memory.data_ptr() % os.sysconf("SC_PAGE_SIZE") == 0
    buffer.memory.fill_(3)
    del buffer
    assert not runtime.registered


def test_nothing_is_unpinned_while_the_interpreter_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = registered_buffer(5000, CPU, runtime := Runtime())
    monkeypatch.setattr(sys, "is_finalizing", lambda: True)
    del buffer
    assert runtime.registered


def test_an_error_that_cuda_keeps_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[torch.device] = []

    def raises(count: int, device: torch.device) -> None:
        launched.append(device)
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch, "ones", raises)
    with pytest.raises(RuntimeError, match="cudaHostRegister returned 2"):
        registered_buffer(100, CPU, Runtime(2))
    assert launched == [CPU]


def test_other_accelerators_pin_as_torch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    empty: Callable[..., torch.Tensor] = torch.empty
    asked: list[Any] = []

    def pinned(size: int, *, pin_memory: bool, **options: Any) -> torch.Tensor:
        asked.append((size, pin_memory))
        return empty(size, **options)

    monkeypatch.setattr(torch, "empty", pinned)
    buffer = buffer_pool.pinned_buffer(12, torch.device("xpu"))
    assert (asked, buffer.pinned, buffer.bytes) == ([(12, True)], True, 12)
