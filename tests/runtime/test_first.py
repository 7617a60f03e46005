"""`first`: only the first blocks of a stack are checkpointed."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from ckpt_surgery import SurgeryError, wrap_blocks
from ckpt_surgery.runtime.surgery.surgery import Surgery
from tests.zoo.tiny_models import llama

pytestmark = [pytest.mark.both, pytest.mark.torch]


def done(surgery: Surgery) -> list[bool]:
    return [surgery.checkpoints(block) for stack in surgery.stacks for block in stack.blocks]


@pytest.mark.parametrize("first", [2, {"model": 2}, {"model.*": 2}, {"model.layers": 2, "*": 4}])
def test_the_first_blocks(first: Any) -> None:
    surgery = wrap_blocks(llama(), first=first)
    assert done(surgery) == [True, True, False, False]
    assert "2 of 4" in str(surgery)
    assert "left out by first" in str(surgery)


def test_every_second_of_the_first_three() -> None:
    surgery = wrap_blocks(llama(), first=3, every_n=2)
    assert done(surgery) == [True, False, True, False]
    assert "left out by first, left out by every_n" in str(surgery)


def test_more_than_there_are_and_none() -> None:
    assert done(wrap_blocks(llama(), first=9)) == [True] * 4
    assert done(wrap_blocks(llama(), first=0)) == [False] * 4


def test_it_stays_when_checkpointing_is_switched_off_and_on() -> None:
    model = llama()
    surgery = wrap_blocks(model, first=1)
    model.gradient_checkpointing_disable()
    assert not any(done(surgery))
    model.gradient_checkpointing_enable()
    assert done(surgery) == [True, False, False, False]


@pytest.mark.parametrize("first", [-1, True, 1.5, "2", {}, {"model.layers": -1}, {"model.layers": "1"}])
def test_what_is_no_number_of_blocks_is_refused(first: Any) -> None:
    model = llama()
    with pytest.raises(SurgeryError, match="first is"):
        wrap_blocks(model, first=first)


def test_a_stack_that_is_not_there_is_refused() -> None:
    with pytest.raises(SurgeryError, match=r"no stack matches 'decoder': the stacks are model\.layers"):
        wrap_blocks(llama(), first={"decoder": 1})
