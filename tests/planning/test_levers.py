"""Changes to a training besides checkpointing: each lever takes what a step with it takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch import nn

from ckpt_surgery import DoesNotFitError
from ckpt_surgery.planning.allocations import StepAllocations
from ckpt_surgery.planning.answer import LeverPeak, StateLever
from ckpt_surgery.planning.choices import PlanChoice
from ckpt_surgery.planning.cuda_operators import CudaOperators
from ckpt_surgery.planning.explain import metered
from ckpt_surgery.planning.lever_steps import steps_with_levers
from ckpt_surgery.planning.lora import add_lora
from ckpt_surgery.planning.planner import stacks_of
from ckpt_surgery.planning.target import ReleasedModel
from ckpt_surgery.planning.training import Optimizer, Sharding, TrainingSetup
from ckpt_surgery.text import size
from tests.planning.test_target import config, model_of

pytestmark = [pytest.mark.torch, pytest.mark.slow]
ADAMW = TrainingSetup.of("adamw", 1, None, "H100")


def model(folder: Path) -> ReleasedModel:
    return model_of(config(folder, hidden_size=256, intermediate_size=1024, num_hidden_layers=2))


def peaks(
    released: ReleasedModel, training: TrainingSetup = ADAMW, ranks: int = 1
) -> dict[tuple[StateLever, int], int]:
    """Return the peak with each lever and all blocks checkpointed."""
    stacks = stacks_of(released.model)
    every = PlanChoice(stacks, dict.fromkeys((name for names in stacks.values() for name in names), ()))

    def step(changed: nn.Module) -> tuple[StepAllocations, int]:
        with CudaOperators():
            return metered(changed, released.inputs, released.shapes)

    tried = steps_with_levers(released.model, released.shapes, step, every, training, ranks)
    return {(each.lever, each.cards): each.explanation.peak_bytes for each in tried}


def checkpointed(released: ReleasedModel, training: TrainingSetup) -> int:
    released.wrap()
    return released.explained(training).peak_bytes


def test_each_lever_takes_what_a_step_of_such_a_training_takes(tmp_path: Path) -> None:
    found = peaks(model(tmp_path))
    for lever, four_bits in ((StateLever.LORA, False), (StateLever.LORA_4BIT, True)):
        adapted = model(tmp_path)
        add_lora(adapted.model, 16, adapted.shapes, four_bits=four_bits)
        assert found.pop((lever, 1)) == checkpointed(adapted, ADAMW)
    eight = replace(ADAMW, optimizer=Optimizer.ADAMW_8BIT)
    assert found.pop((StateLever.ADAM_8BIT, 1)) == checkpointed(model(tmp_path), eight)
    for cards in (2, 4, 8):
        divided = replace(ADAMW, ranks=cards, sharding=Sharding.FSDP)
        assert found.pop((StateLever.FSDP, cards)) == checkpointed(model(tmp_path), divided)
    assert not found


def test_of_adapters_the_frozen_layers_are_packed(tmp_path: Path) -> None:
    adapted, packed = model(tmp_path), model(tmp_path)
    add_lora(adapted.model, 16, adapted.shapes)
    add_lora(packed.model, 16, packed.shapes, four_bits=True)
    found = peaks(adapted)
    assert {lever for lever, _ in found} == {StateLever.FOUR_BITS, StateLever.ADAM_8BIT, StateLever.FSDP}
    assert found[StateLever.FOUR_BITS, 1] == checkpointed(packed, ADAMW)
    assert {lever for lever, _ in peaks(packed)} == {StateLever.ADAM_8BIT, StateLever.FSDP}


def test_a_model_that_is_divided_already_is_not_divided_again(tmp_path: Path) -> None:
    divided = replace(ADAMW, ranks=2, sharding=Sharding.FSDP)
    assert StateLever.FSDP not in {lever for lever, _ in peaks(model(tmp_path), divided)}


def test_the_fewest_cards_that_are_enough_are_named() -> None:
    fsdp = [LeverPeak(StateLever.FSDP, cards, 100 // cards) for cards in (2, 4, 8)]
    lora = LeverPeak(StateLever.LORA, 1, 30)
    assert LeverPeak.useful([*fsdp, lora], 100, 25) == (fsdp[1], lora)
    assert LeverPeak.useful([*fsdp, lora], 100, 1) == (fsdp[2], lora)
    assert LeverPeak.useful([*fsdp, lora], 30, 25) == (fsdp[1],)
    assert (fsdp[1].name, fsdp[1].options) == ("FSDP over 4 cards", "--ranks 4 --fsdp")


@pytest.mark.parametrize(
    ("cards", "said"),
    [
        (2, "FSDP over the 2 cards that train it now"),
        (4, "FSDP over 4 cards in place of the 2 cards that train it now"),
    ],
)
def test_where_ranks_train_already_their_cards_are_named(cards: int, said: str) -> None:
    assert LeverPeak(StateLever.FSDP, cards, 1, ranks=2).name == said
    assert LeverPeak(StateLever.LORA, 1, 1, ranks=2).name == "LoRA"


def test_levers_say_what_a_plan_that_does_not_fit_takes_with_them(tmp_path: Path) -> None:
    options: Any = {"training": ADAMW, "offload": True, "changes": True}
    with pytest.raises(DoesNotFitError, match=r"it still needs [\d.]+ MiB\. The smallest common card"):
        model(tmp_path).planned(10**6, training=ADAMW, offload=False, changes=False)
    large = model(tmp_path).resized(4, 64)
    whole = large.planned(10**9, **options)
    assert whole.levers == ()
    made = large.planned(whole.explanation.peak_bytes - 1, **options)
    best = made.levers[0]
    assert best.lever is StateLever.LORA_4BIT
    assert f"Most effect: with `--lora 16 --load-in-4bit` a step can do with {size(best.peak_bytes)}, " in made.answer
