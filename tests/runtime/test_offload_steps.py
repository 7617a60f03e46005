"""Offload over many steps and beside other checkpoints and hooks: what is prefetched, and that nothing is left."""

from __future__ import annotations

import gc
import random
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks, save_on_cpu
from torch.utils.checkpoint import set_checkpoint_early_stop

from ckpt_surgery.runtime.offload.buffer_pool import PinnedPool
from ckpt_surgery.runtime.offload.disk_transport import DiskTransport
from ckpt_surgery.runtime.offload.host_transport import HostTransport
from ckpt_surgery.runtime.offload.offloaded_tensor import OffloadedTensor
from ckpt_surgery.runtime.offload.offloader import Offloader
from tests.runtime.late_copies import Deferred
from tests.runtime.streams import PLENTY, Pinning, instead_of_the_processor
from tests.runtime.transports import Recorded
from tests.zoo.offload_toys import BLOCKS, Function, backward, blocks, call, first, forward, gradients, grads, same

pytestmark = [
    pytest.mark.both,
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:the folder for offload, .*, is in memory itself"),
    pytest.mark.filterwarnings("ignore:offload has pinned the"),
]


IN_ORDER, REVERSED = (0, 1, 2), (2, 1, 0)


def towers(offloader: Offloader | None, order: Sequence[int] = IN_ORDER) -> list[Tensor]:
    """Run three forwards of three blocks, and then the backward of each, in this order."""
    given = [first(seed) for seed in order]
    losses = [forward(blocks(3), hidden, offloader) for hidden in given]
    for number in order:
        backward(losses[number])
    return grads(*given)


def ahead(offloader: Offloader, order: Sequence[int] = IN_ORDER) -> tuple[int, int]:
    """Return how many were fetched in a step, and how many of them ahead of their use."""
    fetched, prefetched = offloader.stats.fetched, offloader.stats.prefetched
    assert same(towers(offloader, order), towers(None, order))
    return offloader.stats.fetched - fetched, offloader.stats.prefetched - prefetched


def test_the_order_of_the_first_step_is_that_of_the_next() -> None:
    offloader = Offloader(Recorded(), minimum_bytes=0, in_flight=1)
    assert ahead(offloader) == (8, 6), "the first of the backward, and the first of the second tower, come late"
    assert ahead(offloader) == ahead(offloader) == (8, 7)


def test_the_order_of_the_last_whole_step_counts() -> None:
    offloader = Offloader(Deferred(), minimum_bytes=0, in_flight=1)
    for _ in range(2):
        ahead(offloader)
        fetched, prefetched = ahead(offloader, REVERSED)
        assert fetched - prefetched == 2, "two towers come after another one than before"
        assert ahead(offloader, REVERSED)[1] == fetched


def test_a_step_of_another_length_goes_by_its_forward() -> None:
    offloader = Offloader(Deferred(), minimum_bytes=0, in_flight=1)
    ahead(offloader)
    for _ in range(2):
        before = offloader.stats.prefetched
        assert same(gradients(offloader), gradients())
        assert offloader.stats.prefetched - before == BLOCKS - 2
    assert ahead(offloader) == (8, 6)


def waiting_tensors() -> list[Any]:
    """Return all tensors that wait for a backward."""
    gc.collect()
    return [thing for thing in gc.get_objects() if type(thing) is OffloadedTensor]


def some_step(number: int, offloader: Offloader) -> None:
    """Take a whole step, or one that ends in some other way."""
    hidden = first(number)
    match number % 6:
        case 0:
            with torch.no_grad():
                forward(blocks(), hidden, offloader)
        case 1:  # the forward fails
            with suppress(ZeroDivisionError):
                forward([*blocks(3), Function(lambda hidden: hidden / (1 // 0))], hidden, offloader)
        case 2:  # the backward fails
            stack = blocks()
            cast(Any, stack[2].linear.weight).register_hook(lambda gradient: gradient / (1 // 0))
            with suppress(ZeroDivisionError):
                backward(forward(stack, hidden, offloader))
        case 3:  # there is no backward
            forward(blocks(), hidden, offloader)
        case 4:  # it stops early: only the last blocks' gradients are wanted
            stack = blocks()
            loss = forward(stack, hidden, offloader)
            torch.autograd.grad(loss, [stack[-2].linear.weight])
        case _:
            backward(forward(blocks(), hidden, offloader))


@pytest.mark.parametrize("store", ["pinned", "pinned and pageable", "disk"])
def test_96_steps_that_end_in_all_ways_leave_nothing(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instead_of_the_processor(monkeypatch)
    pool = PinnedPool(10**9 if store == "pinned" else 1500, pin=(pin := Pinning()), memory=lambda: PLENTY)
    transport = DiskTransport(tmp_path) if store == "disk" else HostTransport(pool)
    offloader = Offloader(transport, minimum_bytes=0)
    counted: list[Any] = []
    others = waiting_tensors()  # torch keeps a graph whose backward failed until the next one
    for number in range(96):
        some_step(number, offloader)
        if number % 24 == 23:
            alive = len(waiting_tensors()) - len(others)
            transport.pool._collect()
            counted.append((alive, len(offloader._known), transport.pool.lent, transport.pool.bytes, pin.pinned))
    assert counted[0][:3] == (0, 0, 0)
    assert len(set(counted)) == 1
    assert len(offloader._copying) <= 2
    assert len(offloader._returning) <= 2
    assert len(offloader._step._calls) <= BLOCKS
    assert same(gradients(offloader), gradients())


def accumulated(offloader: Offloader | None, seed: int) -> list[Tensor]:
    """Add up gradients over three forwards on one stack, evaluations between them, backwards in any order."""
    chance, stack, waiting = random.Random(seed), blocks(3), list[Tensor]()
    given = [first(number) for number in range(3)]
    for hidden in given:
        waiting.append(forward(stack, hidden, offloader))
        with torch.no_grad():
            forward(stack, hidden, offloader)
        if chance.random() < 0.3:
            backward(waiting.pop(chance.randrange(len(waiting))))
    chance.shuffle(waiting)
    for loss in waiting:
        backward(loss)
    return grads(*given, *(parameter for block in stack for parameter in block.parameters()))


def living_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


def test_60_accumulated_steps_have_their_gradients_and_leave_no_tensor() -> None:
    offloader = Offloader(Deferred(0), minimum_bytes=0)
    living = set[int]()
    for seed in range(60):
        assert same(accumulated(offloader, seed), accumulated(None, seed))
        if seed % 20 == 19:
            living.add(living_tensors())
    assert len(living) == 1
    assert offloader.stats.prefetched > offloader.stats.fetched / 2


def test_what_is_kept_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    before, kept = living_tensors(), list[Any]()
    monkeypatch.setattr(Deferred, "finish", lambda store, copy: kept.append(first()))
    accumulated(Offloader(Deferred(0), minimum_bytes=0), 0)
    assert living_tensors() - before >= len(kept) > 0


@pytest.fixture(params=["late", "files"])
def offloader(request: pytest.FixtureRequest, tmp_path: Path) -> Offloader:
    transport = Deferred(0) if request.param == "late" else DiskTransport(tmp_path)
    return Offloader(transport, minimum_bytes=0)


@pytest.mark.parametrize("early", [True, False])
def test_a_recompute_may_stop_early_or_not(early: bool, offloader: Offloader) -> None:
    with set_checkpoint_early_stop(early):
        assert same(gradients(offloader), gradients())
    assert offloader.stats.tensors == BLOCKS - 1


def nested(outer: Offloader | None, inner: Offloader | None) -> list[Tensor]:
    """Build two stages of two blocks; stages and blocks are checkpointed."""
    stack, hidden = blocks(4), first()

    def stage(some: Sequence[nn.Module]) -> nn.Module:
        def run(values: Tensor) -> Tensor:
            for block in some:
                values = call(block, inner, values)
            return values

        return Function(run)

    backward(forward([stage(stack[:2]), stage(stack[2:])], hidden, outer))
    return grads(hidden, *(parameter for block in stack for parameter in block.parameters()))


def test_checkpoints_may_be_nested_with_one_offloader_or_two(offloader: Offloader) -> None:
    expected, other = nested(None, None), Offloader(Deferred(1), minimum_bytes=0)
    for outer, inner in ((offloader, None), (None, other), (offloader, other), (offloader, offloader)):
        for _ in range(2):
            assert same(nested(outer, inner), expected)
    assert offloader.stats.tensors > 0
    gc.collect()
    assert not offloader._known
    assert not other._known


@pytest.mark.parametrize("inside", [False, True], ids=["around a step", "in a block"])
def test_other_hooks_on_saved_tensors_go_with_it(inside: bool, offloader: Offloader) -> None:
    def hooked(block: nn.Module) -> nn.Module:
        def run(values: Tensor) -> Tensor:
            with save_on_cpu():
                result: Tensor = block(values)
            return result

        return Function(run) if inside else block

    stack, hidden = blocks(), first()
    with nullcontext() if inside else save_on_cpu():
        loss = forward([hooked(block) for block in stack], hidden, offloader)
    backward(loss)
    everything = grads(hidden, *(parameter for block in stack for parameter in block.parameters()))
    assert same(everything, gradients())
    # hooks in the block keep all that its backward needs
    assert offloader.stats.tensors == (0 if inside else BLOCKS - 1)


def test_where_hooks_are_forbidden_that_is_said_and_the_next_step_works(offloader: Offloader) -> None:
    with disable_saved_tensors_hooks("no hooks here"), pytest.raises(RuntimeError, match="no hooks here"):
        forward(blocks(), first(), offloader)
    assert same(gradients(offloader), gradients())
    assert offloader.stats.tensors == BLOCKS - 1
