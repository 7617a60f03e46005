"""Meter steps with what a training could change beside checkpointing (LoRA, FSDP), on top of a plan's choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from torch import nn

from ckpt_surgery.planning.allocations import StepAllocations
from ckpt_surgery.planning.answer import RANK, StateLever
from ckpt_surgery.planning.choices import PlanChoice
from ckpt_surgery.planning.explain import explanation_of
from ckpt_surgery.planning.explanation import Explanation
from ckpt_surgery.planning.lora import add_lora, pack_frozen
from ckpt_surgery.planning.metered_steps import applied_on_shapes
from ckpt_surgery.planning.shapes import ShapesOnly, shapes_of
from ckpt_surgery.planning.training import Optimizer, Sharding, TrainingSetup

_DIVIDED = (2, 4, 8)
"""The numbers of cards that a model is divided among; if several ranks train already, multiples of theirs instead."""


@dataclass(frozen=True, slots=True)
class LeverStep:
    """A step with a lever: the model on shapes that ran it, and its explanation."""

    lever: StateLever
    cards: int
    model: nn.Module
    explanation: Explanation


def steps_with_levers(
    model: nn.Module,
    shapes: ShapesOnly,
    metered: Callable[[nn.Module], tuple[StepAllocations, int]],
    choice: PlanChoice,
    training: TrainingSetup,
    ranks: int = 1,
) -> Iterator[LeverStep]:
    """Yield a step with `choice` and each lever that a model without data and its training do not use yet.

    `metered` runs a step of the model, or of a copy of it. The model is left as it was. A lever that the model does
    not take is skipped. FSDP is tried on several numbers of cards, none below the `ranks` that train it now.
    """
    with applied_on_shapes(choice, model):
        step, drawn = metered(model)
        if training.optimizer in (Optimizer.ADAMW, Optimizer.NONE):
            eight = replace(training, optimizer=Optimizer.ADAMW_8BIT)
            yield LeverStep(StateLever.ADAM_8BIT, 1, model, explanation_of(model, step, drawn, eight))
        for cards in (_DIVIDED if ranks == 1 else (ranks, 2 * ranks, 4 * ranks)) if training.sharding is None else ():
            divided = replace(training, ranks=cards, sharding=Sharding.FSDP)
            yield LeverStep(StateLever.FSDP, cards, model, explanation_of(model, step, drawn, divided))
    has_adapters = not all(parameter.requires_grad for parameter in model.parameters())
    for lever in (StateLever.FOUR_BITS,) if has_adapters else (StateLever.LORA, StateLever.LORA_4BIT):
        with suppress(Exception):  # whatever the new layers raise: there is one suggestion fewer
            changed = shapes_of(model, shapes)
            if has_adapters:
                pack_frozen(changed, shapes)
            else:
                add_lora(changed, RANK, shapes, four_bits=lever is StateLever.LORA_4BIT)
            with applied_on_shapes(choice, changed):
                explained = explanation_of(changed, *metered(changed), training)
            yield LeverStep(lever, 1, changed, explained)
