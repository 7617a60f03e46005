"""`wrap_blocks(save={...})`: different results kept in single stacks and blocks, in one surgery with one undo."""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")


from ckpt_surgery import SurgeryError, verify, wrap_blocks
from ckpt_surgery.measure.step import run_step
from tests.runtime.selective.test_kept_results import (
    ATTENTION_BYTES,
    KERNEL,
    MATMUL_BYTES,
    counts,
    equal,
    layers_of_named,
    t5,
    without,
)
from tests.zoo.tiny_models import llama, tokens

pytestmark = [pytest.mark.both, pytest.mark.torch]

LAYERS = "model.layers"


def kept_by_block(model: Any, save: Any) -> dict[str, int]:
    """Return what `save` makes each block keep by the policies' count, which has to match the meter."""
    wrap_blocks(model)
    before = run_step(model, tokens(), blocks=layers_of_named(model), checkpointing="non_reentrant")
    surgery = wrap_blocks(model, save=save)
    after = run_step(model, tokens(), blocks=layers_of_named(model), checkpointing="non_reentrant")
    kept = {name: held for policy in surgery.policies for name, held in policy.bytes.items() if held}
    assert after.memory.kept - before.memory.kept == sum(kept.values()) == sum(after.memory.told.values())
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
