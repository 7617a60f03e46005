"""`wrap_blocks(save=..., save_offload=True)`: kept results leave the device with the inputs of the blocks."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import nn

from ckpt_surgery import Surgery, SurgeryError, wrap_blocks
from ckpt_surgery.measure.step import run_step
from ckpt_surgery.runtime.offload.offloader import MovedTensor, Offloader, OffloadStats
from ckpt_surgery.runtime.surgery import checkpointing
from tests.runtime.late_copies import Deferred
from tests.runtime.selective.test_kept_results import (
    ATTENTION_BYTES,
    FAMILIES,
    ITEM,
    MATMUL_BYTES,
    POST_NORM_BYTES,
    ROWS,
    SIZE,
    Writing,
    bert,
    equal,
    image,
    layers_of_named,
    without,
)
from tests.runtime.transports import Recorded
from tests.zoo.tiny_models import LENGTH, llama, tokens

pytestmark = [pytest.mark.both, pytest.mark.torch]

BLOCKS = 3
INPUT_BYTES = ROWS * LENGTH * SIZE * ITEM


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Make surgeries move tensors of any size over a transport."""

    def use(transport: Any) -> None:
        monkeypatch.setattr(checkpointing, "_offloader", lambda options: Offloader(transport, minimum_bytes=0))

    return use


def wrapped(model: nn.Module, save: Any = ("attention", "matmul")) -> Surgery:
    return wrap_blocks(model, save=save, save_offload=True, offload="cpu")


def stats_of(surgery: Surgery) -> OffloadStats:
    assert surgery.stats is not None
    return surgery.stats


@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral", "t5", "vit"])
def test_gradients_are_those_without_a_policy_however_late_copies_are(family: str, use: Callable[[Any], None]) -> None:
    make, names = FAMILIES[family]
    inputs = image() if family == "vit" else tokens()
    wrap_blocks(plain := make())
    use(transport := Deferred())
    model = make()
    surgery = wrapped(model, sorted(names - {"random"}))
    assert equal(model, plain, inputs)
    assert transport.peak > 0
    assert stats_of(surgery).tensors > 0


@pytest.mark.parametrize(
    ("save", "kept"),
    [
        ("attention", ATTENTION_BYTES),
        ("matmul", MATMUL_BYTES),
        (["attention", "matmul"], ATTENTION_BYTES + MATMUL_BYTES),
    ],
    ids=str,
)
def test_what_leaves_is_counted_to_the_byte(save: Any, kept: int, use: Callable[[Any], None]) -> None:
    use(Recorded())
    model = llama(BLOCKS)
    surgery = wrapped(model, save)
    model(**tokens()).loss.backward()
    moved = BLOCKS - 1  # the last block's stays
    assert stats_of(surgery).bytes == moved * (INPUT_BYTES + kept)
    assert 0 < stats_of(surgery).fetched < stats_of(surgery).tensors, "some had not left when they were needed"
    assert surgery.policies[0].bytes == dict.fromkeys(layers_of_named(model), kept)
    assert "on the host" in str(surgery).splitlines()[-1]


@pytest.mark.parametrize("save_offload", [False, True])
def test_what_a_block_returns_leaves_once(save_offload: bool, use: Callable[[Any], None]) -> None:
    use(Recorded())
    counts = []
    for save in (None, "norm"):
        model = bert()
        surgery = wrap_blocks(model, save=save, save_offload=save_offload and save is not None, offload="cpu")
        model(**tokens()).loss.backward()
        counts.append(stats_of(surgery))
    without, with_it = counts
    assert with_it.deduplicated - without.deduplicated == 1, "the first block's result is the second block's input"
    assert with_it.bytes - without.bytes == (POST_NORM_BYTES if save_offload else 0)


@pytest.mark.parametrize("save_offload", [False, True])
def test_gradients_are_right_where_an_input_is_a_result_too(save_offload: bool, use: Callable[[Any], None]) -> None:
    for seed in range(3):
        use(Deferred(seed))
        model, plain = bert(), without(bert())
        wrap_blocks(model, save=["norm", "aten.add"], save_offload=save_offload, offload="cpu", self_check="always")
        assert equal(model, plain)
        gradients = []
        for each in (model, plain):
            torch.manual_seed(seed)
            loss = each(**tokens()).loss
            loss.backward(retain_graph=True)
            loss.backward()
            gradients.append([p.grad for p in each.parameters() if p.grad is not None])
        assert all(map(torch.equal, *gradients))


def test_the_device_keeps_what_one_block_keeps(use: Callable[[Any], None]) -> None:
    use(Recorded())
    kept = []
    for options in ({}, {"save": "attention"}, {"save": "attention", "save_offload": True}):
        model = llama(2 * BLOCKS)
        wrap_blocks(model, offload="cpu", **options)
        run = run_step(model, tokens(), blocks=layers_of_named(model), checkpointing="non_reentrant")
        kept.append(run.memory.kept)
    nothing, on_device, on_host = kept
    assert on_device - nothing == 2 * BLOCKS * ATTENTION_BYTES
    assert on_host - nothing < 2 * ATTENTION_BYTES, "of the last block, and what is in flight"


@pytest.mark.parametrize("what", ["other values", "memory given back too early"])
def test_broken_copies_show_in_the_gradients(
    what: str, use: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrap_blocks(plain := llama(BLOCKS), self_check="never")
    use(Deferred(None))
    if what == "other values":
        fetched = MovedTensor.tensor
        monkeypatch.setattr(MovedTensor, "tensor", lambda self: fetched(self) * 2)
    else:
        monkeypatch.setattr(Offloader, "_wait_for", lambda *_: None)
        sent = Offloader._send

        def send(self: Offloader, tensors: Any, most: int) -> None:
            sent(self, tensors, most)
            for offloaded in tensors:
                offloaded.source, offloaded.aliases = None, ()

        monkeypatch.setattr(Offloader, "_send", send)
    model = llama(BLOCKS)
    wrap_blocks(model, save="matmul", save_offload=True, offload="cpu", self_check="never")
    assert not equal(model, plain)


@pytest.mark.parametrize("save_offload", [True, False])
@pytest.mark.parametrize("bias", [True, False], ids=["a view", "memory with a count of its own"])
def test_what_the_caller_writes_before_it_has_left_is_refused(
    bias: bool, save_offload: bool, use: Callable[[Any], None]
) -> None:
    use(Deferred(None))
    model = Writing(bias=bias).train()
    wrap_blocks(model, save="matmul", save_offload=save_offload, offload="cpu", self_check="never")
    with pytest.raises(SurgeryError, match=r"and something writes that in place afterwards"):
        model(torch.randn(2, 3, 4)).backward()


def test_nothing_is_left_after_many_steps_errors_and_evaluation(use: Callable[[Any], None]) -> None:
    use(transport := Deferred(2))
    model = llama(2)
    wrapped(model)
    for number in range(40):
        loss = model(**tokens()).loss
        if number % 4 == 1:
            with torch.no_grad():
                model(**tokens())
        if number % 4 == 2:
            with pytest.raises(IndexError):
                model(input_ids=torch.full((1, 3), 10**6))
        if number % 4 != 3:
            loss.backward()
        del loss
        gc.collect()
        assert not transport.host_copies


@pytest.mark.parametrize(
    "options",
    [{"save_offload": True}, {"save": "attention", "save_offload": True}, {"offload": "cpu", "save_offload": True}],
    ids=str,
)
def test_it_needs_something_to_move_and_a_place(options: dict[str, Any]) -> None:
    with pytest.raises(SurgeryError, match="give save and offload="):
        wrap_blocks(llama(2), **options)
    with pytest.raises(SurgeryError, match="save_offload is 1"):
        wrap_blocks(llama(2), save="attention", offload="cpu", save_offload=1)  # type: ignore[arg-type]
