"""`save` with `save_offload=True`, by which kept results leave the device, and with other names for single blocks."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import nn

from ckpt_surgery import Surgery, SurgeryError, verify, wrap_blocks
from ckpt_surgery.measure.step import run_step
from ckpt_surgery.runtime.offload.offloader import MovedTensor, Offloader, OffloadStats
from ckpt_surgery.runtime.surgery import checkpointing
from tests.runtime.late_copies import Deferred
from tests.runtime.selective.test_kept_results import (
    ATTENTION_BYTES,
    FAMILIES,
    ITEM,
    KERNEL,
    MATMUL_BYTES,
    POST_NORM_BYTES,
    ROWS,
    SIZE,
    Writing,
    bert,
    counts,
    equal,
    image,
    layers_of_named,
    ran_in,
    without,
)
from tests.runtime.transports import Recorded
from tests.zoo.tiny_models import LENGTH, llama, t5, tokens

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
    for number in range(12):
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


LAYERS = "model.layers"


def kept_by_block(model: Any, save: Any) -> dict[str, int]:
    """Return what `save` makes each block keep by the policies' count, which has to match the meter."""
    wrap_blocks(model)
    before = run_step(model, tokens(), blocks=layers_of_named(model), checkpointing="non_reentrant")
    surgery = wrap_blocks(model, save=save)
    after = run_step(model, tokens(), blocks=layers_of_named(model), checkpointing="non_reentrant")
    kept = {name: held for policy in surgery.policies for name, held in policy.bytes.items() if held}
    assert after.memory.kept - before.memory.kept == sum(kept.values()) == sum(after.memory.kept_by_policy.values())
    return kept


@pytest.mark.parametrize(
    ("save", "expected"),
    [
        ({f"{LAYERS}.0": "attention", "*": "matmul"}, [ATTENTION_BYTES, *[MATMUL_BYTES] * 3]),
        ({f"{LAYERS}.[02]": "matmul", f"{LAYERS}.[1]": ["attention"]}, [MATMUL_BYTES, ATTENTION_BYTES, MATMUL_BYTES]),
        ({LAYERS: ["attention", "matmul"]}, [ATTENTION_BYTES + MATMUL_BYTES] * 4),
        ({"model": "attention"}, [ATTENTION_BYTES] * 4),
    ],
    ids=str,
)
def test_each_block_keeps_what_the_first_pattern_says_that_matches_it(save: Any, expected: list[int]) -> None:
    assert kept_by_block(llama(4), save) == {f"{LAYERS}.{place}": held for place, held in enumerate(expected)}


def test_stacks_keep_differently_and_gradients_are_equal() -> None:
    model = t5()
    attributes = {name: dict(vars(module)) for name, module in model.named_modules()}
    plain = without(copy.deepcopy(model))
    surgery = wrap_blocks(model, save={"encoder": "attention", "decoder": ["matmul:2"]})
    assert equal(model, plain)
    texts = [(policy.blocks, policy.save, set(policy.bytes)) for policy in surgery.policies]
    assert texts == [
        ("encoder", ("attention",), {"encoder.block.0", "encoder.block.1"}),
        ("decoder", ("matmul:2",), {"decoder.block.0", "decoder.block.1"}),
    ]
    surgery.undo()
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == attributes


def test_the_table_says_which_blocks_keep_what() -> None:
    model = llama(3)
    surgery = wrap_blocks(model, save={f"{LAYERS}.0": "attention", "*": "matmul:2"}, first=2)
    assert str(surgery).splitlines()[-2:] == [
        f"save attention in {LAYERS}.0: what it keeps is known after a step",
        "save matmul:2: what it keeps is known after a step",
    ]
    model(**tokens()).loss.backward()
    first, second = str(surgery).splitlines()[-2:]
    assert first.startswith(f"save attention in {LAYERS}.0: 1 result in the last step, 1.7 KiB")
    assert second.startswith("save matmul:2: 4 results in the last step")


def test_it_outlives_a_switch_and_a_copy() -> None:
    model = llama(2)
    wrap_blocks(model, save={f"{LAYERS}.1": "attention"})
    model.gradient_checkpointing_disable()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    other = copy.deepcopy(model)
    assert [counts(each)[1][KERNEL] for each in (model, other)] == [1, 1]


def test_compiled_blocks_keep_what_is_said_of_them() -> None:
    torch._dynamo.reset()
    model = llama(2)
    wrap_blocks(model, save={f"{LAYERS}.0": "attention"})
    run: Any = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert ran_in(run(**tokens()).loss.backward)[KERNEL] == 1


def test_verify_holds_each_block_against_what_it_was_told_to_keep() -> None:
    model = llama(3)
    wrap_blocks(model, save={f"{LAYERS}.0": "attention", f"{LAYERS}.1": "matmul"})
    report = verify(model, tokens(), modes=["non_reentrant"])
    assert report.ok
    assert [(kept.name, kept.blocks) for kept in report.modes[0].kept_results] == [
        ("attention", f"{LAYERS}.0"),
        ("matmul", f"{LAYERS}.1"),
    ]


@pytest.mark.parametrize(
    ("save", "said"),
    [
        ({}, "save is {}: give names of operators, or such names by the names of stacks or blocks"),
        ({1: "attention"}, "save is {1: 'attention'}: give names"),
        ({LAYERS: []}, "save names nothing"),
        ({LAYERS: None}, "save is None: give a name, or several"),
        ({LAYERS: "atention"}, "save names 'atention': give attention, matmul"),
        ({"decoder": "attention"}, "save has 'decoder' for no block: there is none of that name"),
        ({"*": "matmul", LAYERS: "attention"}, "or an earlier pattern names it; the blocks are model.layers.0, "),
    ],
    ids=str,
)
def test_what_says_nothing_of_any_block_is_refused(save: Any, said: str) -> None:
    model = llama(2)
    with pytest.raises(SurgeryError) as refused:
        wrap_blocks(model, save=save)
    assert said in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("options", [{"first": 2}, {"every_n": 2}], ids=str)
def test_a_pattern_for_blocks_that_are_not_checkpointed_is_refused(options: dict[str, Any]) -> None:
    save = {f"{LAYERS}.3": "matmul", "*": "attention"}
    with pytest.raises(SurgeryError, match=r"save has 'model\.layers\.3' for no block: .* that is checkpointed"):
        wrap_blocks(llama(4), save=save, **options)
    assert wrap_blocks(llama(4), save="attention", first=0).policies


def test_a_name_that_matches_nothing_in_its_blocks_is_reported_with_them() -> None:
    model = llama(2)
    wrap_blocks(model, save={f"{LAYERS}.0": "conv", f"{LAYERS}.1": "attention"})
    loss = model(**tokens()).loss
    with pytest.raises(SurgeryError, match=r"save names 'conv', and the blocks of 'model\.layers\.0' run nothing"):
        loss.backward()
