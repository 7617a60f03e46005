"""Answer "does it fit": on which card, with or without checkpointing, and what would save the most."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ckpt_surgery.planning.devices import COMMON, MARGIN, Device
from ckpt_surgery.planning.figures import StepFigures
from ckpt_surgery.planning.text import Hint, Remedy
from ckpt_surgery.text import percent, size

RANK = 16
"""The rank of the adapters that are tried."""


class StateLever(StrEnum):
    """A change that lowers the bytes that live from step to step."""

    LORA = "LoRA"
    LORA_4BIT = "LoRA on 4 bits"
    FOUR_BITS = "4 bits"
    ADAM_8BIT = "8-bit Adam"
    FSDP = "FSDP"

    @classmethod
    def of(cls, steps: Sequence[StepFigures]) -> StateLever | None:
        """Return the lever on states that may save the most, and so is worth trying; None if another remedy may."""
        lever = lever_of(steps)
        return None if lever is None else _ON_STATES.get(lever.remedy)


_REMEDY_WORDS = {
    Remedy.FUSED_LOSS: "a fused loss (`fuse_loss`)",
    Remedy.CHECKPOINT: "checkpointing (`wrap_blocks`)",
    Remedy.SDPA: 'attention that keeps no weights (`attn_implementation="sdpa"`)',
    Remedy.TILE_MLP: "tiled MLPs (`tile_mlp`)",
    Remedy.LORA: "LoRA (`--lora 16`)",
    Remedy.FOUR_BITS: "frozen weights in 4 bits (`--load-in-4bit`)",
}
_ON_STATES = {Remedy.LORA: StateLever.LORA, Remedy.FOUR_BITS: StateLever.FOUR_BITS}
"""Remedies for what lives from step to step, rather than for what a step allocates, and their levers."""
_OPTIONS = {
    StateLever.LORA: f"--lora {RANK}",
    StateLever.LORA_4BIT: f"--lora {RANK} --load-in-4bit",
    StateLever.FOUR_BITS: "--load-in-4bit",
    StateLever.ADAM_8BIT: "--optimizer adamw-8bit",
    StateLever.FSDP: "--ranks {cards} --fsdp",
}
_IN_SCRIPTS = {
    StateLever.LORA: f'LoraConfig(r={RANK}, target_modules="all-linear")',
    StateLever.LORA_4BIT: f'LoraConfig(r={RANK}, target_modules="all-linear"), BitsAndBytesConfig(load_in_4bit=True)',
    StateLever.FOUR_BITS: "BitsAndBytesConfig(load_in_4bit=True)",
    StateLever.ADAM_8BIT: 'optim="adamw_8bit"',
    StateLever.FSDP: "accelerate launch --use_fsdp --fsdp_version 2 --num_processes {cards}",
}


@dataclass(frozen=True, slots=True)
class LeverPeak:
    """A lever, the number of `cards` it divides a model among, and a step's peak with it in bytes.

    The model is already trained by `ranks` ranks, undivided.
    """

    lever: StateLever
    cards: int
    peak_bytes: int
    ranks: int = 1

    @property
    def name(self) -> str:
        """The lever in words, such as "FSDP over 4 cards"."""
        if self.lever is not StateLever.FSDP:
            return str(self.lever)
        if self.ranks == 1:
            return f"FSDP over {self.cards} cards"
        now = f"the {self.ranks} cards that train it now"
        return f"FSDP over {now}" if self.cards == self.ranks else f"FSDP over {self.cards} cards in place of {now}"

    @property
    def options(self) -> str:
        """The lever as options of `plan` and `explain`."""
        return _OPTIONS[self.lever].format(cards=self.cards)

    @property
    def in_scripts(self) -> str:
        """The lever as code of a training script, or as the command that starts it."""
        return _IN_SCRIPTS[self.lever].format(cards=self.cards)

    @classmethod
    def useful(cls, tried: Iterable[LeverPeak], peak_bytes: int, room: int) -> tuple[LeverPeak, ...]:
        """Return the levers that lower a peak, the most effective first; FSDP only with the fewest cards that fit."""
        useful = [each for each in tried if each.peak_bytes < peak_bytes]
        divided = [each for each in useful if each.lever is StateLever.FSDP]
        fewest = next((each for each in divided if each.peak_bytes <= room), divided[-1] if divided else None)
        useful = [each for each in useful if each.lever is not StateLever.FSDP or each is fewest]
        return tuple(sorted(useful, key=lambda each: each.peak_bytes))


def smallest_card(peak: int) -> Device | None:
    """Return the smallest common card that a peak of this many bytes fits on, or None."""
    return next((device for device in COMMON if peak <= device.room), None)


def lever_of(steps: Sequence[StepFigures], tried: LeverPeak | None = None) -> Hint | None:
    """Return what saves the most: checkpointing, by the difference of both steps, or a remedy for the last step.

    If a lever on states was `tried`, it counts with what it saves over the best step, and no other on states counts.
    """
    hints = list(Hint.of(steps[-1]))
    if len(steps) > 1:
        saved = steps[0].peak_bytes - steps[-1].peak_bytes
        hints = [*(hint for hint in hints if hint.remedy is not Remedy.CHECKPOINT), Hint(Remedy.CHECKPOINT, saved)]
    if tried is not None:
        saved = min(step.peak_bytes for step in steps) - tried.peak_bytes
        remedy = next(remedy for remedy, lever in _ON_STATES.items() if lever is tried.lever)
        hints = [*(hint for hint in hints if hint.remedy not in _ON_STATES), Hint(remedy, saved)]
    return max((hint for hint in hints if hint.bytes > 0), key=lambda hint: hint.bytes, default=None)


def answer_line(steps: Sequence[StepFigures], asked: Device | None, tried: LeverPeak | None = None) -> str:
    """Say on which card a model's steps fit, and which lever saves the most.

    `steps` are one without checkpointing, one with it, or both in this order. The card is the one asked for, or the
    smallest common card that fits one of them. `tried` is the last step's peak with the lever of `StateLever.of`;
    without it, the line gives the most that this lever may save.
    """
    best = min(steps, key=lambda step: step.peak_bytes)
    card = asked or smallest_card(best.peak_bytes)
    needed = f"{size(steps[0].peak_bytes)} {'with' if steps[0].checkpointed else 'without'} checkpointing"
    needed += f", {size(steps[1].peak_bytes)} with it" if len(steps) > 1 else ""
    room = 0 if card is None else card.room
    if card is None:
        said = f"Fits on no common card: {needed}."
    else:
        if best.peak_bytes > room:
            larger = smallest_card(best.peak_bytes)
            fits = f"Does not fit on {card.title}{f', but on {larger.title}' if larger else ''}"
        else:
            fits = f"Fits on {card.title}"
            if len(steps) > 1:
                fits += " as it is" if steps[0].peak_bytes <= room else " with checkpointing"
            fits += "" if asked else ", the smallest common card"
        said = f"{fits}: {needed}, of {size(room)} ({percent(1 - MARGIN)} of its memory)."
    lever = lever_of(steps, tried)
    if lever is None:
        return said
    said += f" Most effect: {_REMEDY_WORDS[lever.remedy]}, "
    if lever.remedy not in _ON_STATES:
        exact = lever.remedy is Remedy.CHECKPOINT and len(steps) > 1
        return f"{said}{'' if exact else 'up to '}{size(lever.bytes)}."
    if tried is None:
        said += f"up to {size(lever.bytes)}"
    else:
        said += f"{size(lever.bytes)} less: {size(tried.peak_bytes)}"
        said += " with checkpointing" if steps[-1].checkpointed else ""
        said += ", which fits" if tried.peak_bytes <= room < best.peak_bytes else ""
    if len(steps) > 1:
        said += f"; checkpointing alone saves {size(max(steps[0].peak_bytes - best.peak_bytes, 0))}"
        said += "" if best.peak_bytes <= room < steps[0].peak_bytes else " and is not the lever here"
    return f"{said}."


def plan_line(
    memory: int, name: str, before: StepFigures, planned: StepFigures, levers: Sequence[LeverPeak] = ()
) -> str:
    """Say that a step fits into `memory` with the plan called `name`, and what would save more.

    `before` is the step without the plan. `levers` were tried on top of everything that a plan can do.
    """
    needed = f"Fits into {size(memory)}: {size(planned.peak_bytes)}"
    if planned is before:
        return f"{needed} as it is, nothing has to be done."
    saved = before.peak_bytes - planned.peak_bytes
    said = f"{needed} with {name}; {size(before.peak_bytes)} without."
    lever = next((each for each in levers if planned.peak_bytes - each.peak_bytes > saved), None)
    if lever is None:
        return said
    less = f"{size(lever.peak_bytes)}, {size(planned.peak_bytes - lever.peak_bytes)} less"
    return f"{said} Most effect: with `{lever.options}` a step can do with {less}; the plan saves {size(saved)}."


def may_save_more(before: StepFigures, planned: StepFigures) -> bool:
    """Tell whether a lever on states may save more than a plan does, and so is worth trying."""
    saved = before.peak_bytes - planned.peak_bytes
    return planned is not before and any(hint.remedy in _ON_STATES and hint.bytes > saved for hint in Hint.of(planned))


def shortage_line(memory: int, least: StepFigures, levers: Sequence[LeverPeak]) -> str:
    """Say that the smallest step does not fit into `memory`, which levers would make it fit, and which card fits it.

    `levers` are those that were tried, the most effective first.
    """
    needed, card = least.peak_bytes, smallest_card(least.peak_bytes)
    said = (
        f"{least.model} does not fit into {size(memory)}: at the least a step needs {size(needed)}, "
        f"{size(needed - memory)} more"
    )
    fitting = [
        f"with `{each.options}` it fits: {size(each.peak_bytes)}" for each in levers if each.peak_bytes <= memory
    ]
    if fitting:
        said += f". W{'; '.join(fitting)[1:]}"
    else:
        said += "; take fewer tokens or a smaller batch"
        said += f": with `{levers[0].options}` it still needs {size(levers[0].peak_bytes)}" if levers else ""
    return said + (f". The smallest common card that it fits on as it is: {card.title}" if card else "")
