"""Block inputs leave the device and come back: which, how often, in what order, and what is caught on the way."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

from ckpt_surgery.runtime.offload import offloader as offload
from ckpt_surgery.runtime.offload.disk_transport import DiskTransport
from ckpt_surgery.runtime.offload.host_transport import HostTransport
from ckpt_surgery.runtime.offload.offloaded_tensor import OffloadedTensor
from ckpt_surgery.runtime.offload.offloader import Offloader, OffloadStats
from tests.runtime.late_copies import Deferred
from tests.runtime.transports import Recorded
from tests.zoo.offload_toys import (
    BLOCKS,
    INPUT_BYTES,
    ROWS,
    WIDTH,
    Function,
    backward,
    blocks,
    call,
    first,
    forward,
    gradients,
    grads,
    same,
)

pytestmark = [pytest.mark.both, pytest.mark.torch]


def test_gradients_are_those_without_offload_to_the_bit() -> None:
    offloader = Offloader(minimum_bytes=0)
    assert same(gradients(offloader), gradients())
    moved = BLOCKS - 1
    assert offloader.stats == OffloadStats(moved, moved * INPUT_BYTES, 0, 1, 2, 0, moved - 1, moved - 1, 1)


@pytest.mark.parametrize("seed", range(3))
def test_gradients_are_right_however_late_copies_are(seed: int) -> None:
    offloader = Offloader(Deferred(seed), minimum_bytes=0, in_flight=1 + seed % 3)
    assert same(gradients(offloader), gradients())


class Crowded(Deferred):
    """A store that has room now and then."""

    def put(self, source: Tensor) -> Any:
        assert self._random is not None
        return None if self._random.random() < 0.5 else super().put(source)


@pytest.mark.parametrize("seed", range(4))
def test_gradients_are_right_whatever_has_no_room(seed: int) -> None:
    offloader = Offloader(Crowded(seed), minimum_bytes=0)
    for _ in range(3):
        shared, hidden = first(2), first()
        backward(forward(blocks(), hidden, offloader, others=[shared * 1]))
        expected = first(2), first()
        backward(forward(blocks(), expected[1], others=[expected[0] * 1]))
        assert same(grads(shared, hidden), grads(*expected))
    assert offloader.stats.tensors > 0
    assert offloader.stats.no_room > 0
    assert offloader.stats.tensors + offloader.stats.kept == 3 * (BLOCKS + 1)


def test_memory_that_is_given_back_too_early_shows_in_the_gradients() -> None:
    class Hasty(Offloader):
        def _send(self, tensors: Any, most: int) -> None:
            super()._send(tensors, most)
            for offloaded in tensors:
                offloaded.source = None

    wrong = gradients(Hasty(Deferred(None), minimum_bytes=0))
    assert any(gradient.isnan().any() for gradient in wrong)


def test_inputs_leave_the_memory_of_the_device_during_the_forward() -> None:
    inputs: list[weakref.ref[Any]] = []
    loss = forward(
        blocks(),
        first(),
        Offloader(Recorded(), minimum_bytes=0),
        after=lambda _, given: inputs.append(weakref.ref(given.untyped_storage())),
    )
    there = [reference() is not None for reference in inputs]
    assert there == [False, False, False, True, True, True], "two in flight and the last"
    backward(loss)
    assert not any(reference() for reference in inputs)


def test_masks_and_integers_and_parameters_stay() -> None:
    gate = nn.Parameter(torch.ones(1, WIDTH))
    others = (gate, gate.expand(ROWS, WIDTH), torch.ones(ROWS, WIDTH, dtype=torch.bool), torch.ones(WIDTH).long())
    offloader, hidden = Offloader(minimum_bytes=0), first()
    loss = forward(blocks(), hidden, offloader, others=others)
    backward(loss)
    assert (offloader.stats.tensors, offloader.stats.bytes) == (BLOCKS - 1, (BLOCKS - 1) * INPUT_BYTES)
    assert offloader.stats.kept == 1 + 2 * BLOCKS, "the last, and in each block a parameter and a view of it"
    expected, gate.grad = [*grads(hidden, gate)], None
    hidden = first()
    backward(forward(blocks(), hidden, others=others))
    assert same(expected, grads(hidden, gate))


def test_the_input_of_the_next_block_is_on_its_way_while_one_is_recomputed() -> None:
    recorded, stack = Recorded(), blocks()
    loss = forward(stack, first(), Offloader(recorded, minimum_bytes=0, in_flight=2))
    assert recorded.calls == ["put 0", "put 1", "finish 0", "put 2", "finish 1", "put 3", "finish 2", "put 4"]
    recorded.calls.clear()
    for number, block in enumerate(stack):
        block.register_forward_pre_hook(lambda *_, number=number: recorded.calls.append(f"block {number}"))
    backward(loss)
    assert recorded.calls == [
        *("finish 3", "block 5"),  # its input never left, and that of 4 is still there
        *("start 3", "block 4"),
        *("get 3", "start 2", "block 3"),
        *("get 2", "start 1", "block 2"),
        *("get 1", "start 0", "block 1"),
        *("get 0", "block 0"),
    ]


def test_a_tensor_given_to_all_blocks_moves_once() -> None:
    recorded = Recorded()
    offloader = Offloader(recorded, minimum_bytes=0)
    hidden, shared = first(), first(2)
    embeddings = shared * 1
    loss = forward(blocks(), hidden, offloader, others=[embeddings])
    del embeddings
    assert offloader.stats == OffloadStats(BLOCKS, BLOCKS * INPUT_BYTES, BLOCKS - 1, 1, 2)
    recorded.calls.clear()
    backward(loss)
    assert recorded.calls.count("get 1") == 1, "it stays on the device while each next block needs it"
    expected = grads(hidden, shared)
    hidden, shared = first(), first(2)
    backward(forward(blocks(), hidden, others=[shared * 1]))
    assert same(expected, grads(hidden, shared))


@pytest.mark.parametrize("broken", [False, True], ids=["by the object", "broken: by the address"])
def test_an_address_that_is_used_again_is_another_tensor(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "id", Tensor.data_ptr, raising=False)
    if broken:
        monkeypatch.setattr(OffloadedTensor, "is_of", lambda offloaded, tensor: True)

    def run(offloader: Offloader | None) -> list[Tensor]:
        stack, memory = blocks(4), torch.empty(ROWS, WIDTH).numpy()
        losses = []
        for seed in (1, 2):
            memory[:] = first(seed).detach().numpy()
            values = torch.from_numpy(memory if offloader else memory.copy()).requires_grad_()
            losses.append(forward(stack[1:], call(stack[0], offloader, values), offloader))
            del values
        backward(torch.stack(losses).sum())
        return grads(*stack[0].parameters())

    assert same(run(Offloader(minimum_bytes=0, in_flight=1)), run(None)) is not broken


VIEWS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "expanded": (lambda base: base[:1].expand(ROWS, WIDTH), WIDTH),
    "expanded twice": (lambda base: base[0, 0].expand(ROWS, WIDTH), 1),
    "rows of more": (lambda base: base[2:4], 2 * WIDTH),
    "columns of more": (lambda base: base[:, 3:7], ROWS * 4),
    "columns with gaps, expanded": (lambda base: base[:, None, ::2].expand(ROWS, 3, WIDTH // 2), ROWS * WIDTH // 2),
    "transposed": (lambda base: base.t(), ROWS * WIDTH),
    "windows that overlap": (lambda base: base.flatten().unfold(0, 4, 1), ROWS * WIDTH),
    "a scalar": (lambda base: base[3, 3], 1),
    "with its sign to be turned": (lambda base: torch.view_as_complex(base.view(ROWS, -1, 2)).conj().imag, ROWS * 8),
}


@pytest.mark.filterwarnings("ignore:the folder for offload, .*, is in memory itself")
@pytest.mark.parametrize("store", [HostTransport, DiskTransport])
@pytest.mark.parametrize("name", VIEWS)
def test_of_a_view_only_what_it_covers_moves(name: str, store: Callable[[], HostTransport]) -> None:
    view_of, elements = VIEWS[name]
    seen: list[tuple[tuple[int, ...], Tensor]] = []

    def block(hidden: Tensor) -> Tensor:
        seen.append((hidden.stride(), hidden.detach().clone()))
        return torch.sin(hidden) * 2

    offloader, base = Offloader(store(), minimum_bytes=0, in_flight=1), first()
    given = (view_of(base * 1), first(), first())
    results = [call(Function(block), offloader, tensor).sum() for tensor in given]
    assert offloader.stats.bytes == elements * 4 + INPUT_BYTES
    backward(torch.stack(results).sum())
    (stride, values), (again, values_again) = seen[0], seen[-1]
    assert torch.equal(values, values_again)
    closed = "columns" in name or "sign" in name
    assert again == stride or closed, "gaps are closed, all other strides restored"
    expected = first()
    backward(torch.sin(view_of(expected)).mul(2).sum())
    assert same(grads(base), grads(expected))


def test_tensors_below_the_threshold_stay() -> None:
    for minimum, moved in ((INPUT_BYTES, BLOCKS - 1), (INPUT_BYTES + 1, 0)):
        offloader = Offloader(minimum_bytes=minimum)
        assert same(gradients(offloader), gradients())
        assert (offloader.stats.tensors, offloader.stats.kept) == (moved, BLOCKS - moved)


def test_complex_and_empty_tensors_stay() -> None:
    def run(offloader: Offloader | None) -> list[Tensor]:
        hidden = torch.view_as_complex(first().detach().view(ROWS, -1, 2)).clone().requires_grad_()
        result = hidden
        for _ in range(3):
            result = call(Function(lambda value: value * value.conj() + value), offloader, result)
        backward(result.abs().sum())
        return grads(hidden)

    offloader = Offloader(minimum_bytes=0)
    assert same(run(offloader), run(None))
    assert (offloader.stats.tensors, offloader.stats.kept) == (0, 3)
    backward(forward(blocks(), torch.empty(0, WIDTH, requires_grad=True), offloader))
    assert (offloader.stats.tensors, offloader.stats.kept) == (0, 3 + BLOCKS)


@pytest.mark.parametrize("late", range(4))
@pytest.mark.parametrize("number", [0, BLOCKS - 2])
def test_a_write_to_a_saved_input_is_an_error_of_the_backward(number: int, late: int) -> None:
    # Before it is sent, on its way, and after.
    given: list[Tensor] = []

    def write(done: int, hidden: Tensor) -> None:
        given.append(hidden)
        if done == min(number + late, BLOCKS - 1):
            given[number].detach().add_(1)

    loss = forward(blocks(), first(), Offloader(Deferred(number), minimum_bytes=0), after=write)
    with pytest.raises(RuntimeError, match=r"shape \(8, 16\), was modified in place .*Modify a clone"):
        backward(loss)


@pytest.mark.parametrize("late", range(3))
def test_a_write_through_an_alias_fails_until_the_memory_is_given_back(late: int) -> None:
    aliases: list[Tensor] = []

    def write(done: int, hidden: Tensor) -> None:
        aliases.append(hidden.detach())
        if done == 1 + late:
            aliases[1].add_(1)

    hidden = first()
    loss = forward(blocks(), hidden, Offloader(Deferred(), minimum_bytes=0, in_flight=1), after=write)
    with pytest.raises(RuntimeError, match="was modified") if late < 2 else nullcontext():
        backward(loss)
    if late == 2:
        assert torch.equal(grads(hidden)[0], gradients()[0])


def test_without_the_check_a_write_gives_wrong_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OffloadedTensor, "modified", lambda offloaded: False)
    hidden = first()

    def write(number: int, given: Tensor) -> None:
        if number == 2:
            given.detach().add_(1)

    backward(forward(blocks(), hidden, Offloader(Deferred(), minimum_bytes=0), after=write))
    assert not torch.equal(grads(hidden)[0], gradients()[0])


def test_a_write_to_a_saved_mask_is_an_error_too() -> None:
    mask = torch.ones(ROWS, WIDTH, dtype=torch.bool)
    loss = forward(blocks(), first(), Offloader(minimum_bytes=0), others=[mask])
    mask.logical_not_()
    with pytest.raises(RuntimeError, match="modified in place"):
        backward(loss)


@pytest.mark.parametrize("in_flight", [1, 2, 3, 9])
def test_no_more_than_the_limit_are_in_flight(in_flight: int) -> None:
    offloader = Offloader(deferred := Deferred(), minimum_bytes=0, in_flight=in_flight)
    gradients(offloader)
    assert deferred.peak == offloader.stats.peak_in_flight == min(in_flight, BLOCKS - 1)


def test_a_second_backward_fetches_again() -> None:
    recorded, hidden = Recorded(), first()
    loss = forward(blocks(), hidden, Offloader(recorded, minimum_bytes=0))
    backward(loss, again=True)
    once = grads(hidden)[0].clone()
    recorded.calls.clear()
    backward(loss)
    assert torch.equal(grads(hidden)[0], 2 * once)
    assert [called for called in recorded.calls if called.startswith("get")] == [
        f"get {number}" for number in (4, 3, 2, 1, 0)
    ]


def test_gradients_of_gradients_are_right() -> None:
    def second(offloader: Offloader | None) -> list[Tensor]:
        hidden, stack = first(), blocks()
        (gradient,) = torch.autograd.grad(forward(stack, hidden, offloader), hidden, create_graph=True)
        backward(gradient.square().sum())
        return grads(hidden, *stack[0].parameters())

    assert same(second(Offloader(Deferred(), minimum_bytes=0)), second(None))


def test_a_graph_that_ends_without_backward_leaves_nothing() -> None:
    offloader = Offloader(deferred := Deferred(), minimum_bytes=0)
    loss = forward(blocks(), first(), offloader)
    assert len(deferred.host_copies) == BLOCKS - 1
    del loss
    gc.collect()
    assert not deferred.host_copies
    assert not offloader._known
    assert offloader._newest() is None
    assert same(gradients(offloader), gradients())


def test_a_block_that_fails_leaves_a_clean_state() -> None:
    def fail(hidden: Tensor) -> Tensor:
        raise ValueError("no")

    offloader = Offloader(Deferred(), minimum_bytes=0)
    with pytest.raises(ValueError, match="no"):
        forward([*blocks(2), Function(fail)], first(), offloader)
    assert not offloader._known
    stats = copy.copy(offloader.stats)
    forward(blocks(), first())
    assert offloader.stats == stats, "autograd's hooks are gone"
    assert same(gradients(offloader), gradients())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_have_the_options_and_nothing_in_flight(copied: Callable[[Offloader], Offloader]) -> None:
    offloader = Offloader(minimum_bytes=INPUT_BYTES, in_flight=1)
    loss = forward(blocks(), first(), offloader)
    other = copied(offloader)
    assert other.stats == OffloadStats()
    assert not other._known
    assert not other._copying
    gradients(other)
    backward(loss)
    moved = BLOCKS - 1
    expected = OffloadStats(moved, moved * INPUT_BYTES, 0, 1, 1, 0, moved - 1, moved - 1, 1)
    assert other.stats == offloader.stats == expected


def test_nothing_is_saved_without_gradients() -> None:
    offloader = Offloader(minimum_bytes=0)
    with torch.no_grad():
        forward(blocks(), first(), offloader)
    assert offloader.stats == OffloadStats()
    loss = forward(blocks(), first(), offloader)
    with torch.no_grad():
        forward(blocks(), loss.expand(ROWS, WIDTH), offloader)
    assert offloader.stats.kept == 1, "the last of a forward stays, even if others follow without gradients"
