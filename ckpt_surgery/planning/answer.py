"""Answer "does it fit": on which card, with or without checkpointing, and what would save the most."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt_surgery.planning.devices import COMMON, MARGIN, Device
from ckpt_surgery.planning.figures import StepFigures
from ckpt_surgery.planning.hints import Hint, Remedy, hints_of
from ckpt_surgery.planning.levers import LeverPeak, StateLever
from ckpt_surgery.text import percent, size

_LEVERS = {
    Remedy.FUSED_LOSS: "a fused loss (`fuse_loss`)",
    Remedy.CHECKPOINT: "checkpointing (`wrap_blocks`)",
    Remedy.SDPA: 'attention that keeps no weights (`attn_implementation="sdpa"`)',
    Remedy.TILE_MLP: "tiled MLPs (`tile_mlp`)",
    Remedy.LORA: "LoRA (`--lora 16`)",
    Remedy.FOUR_BITS: "frozen weights in 4 bits (`--load-in-4bit`)",
}

_STATES = {Remedy.LORA: StateLever.LORA, Remedy.FOUR_BITS: StateLever.FOUR_BITS}
"""The remedies for states rather than for what a step allocates."""


def room_of(device: Device) -> int:
    """Return the bytes of a card that a step may take: its memory less the margin for what is not counted."""
    return int(device.memory * (1 - MARGIN))


def smallest_card(peak: int) -> Device | None:
    """Return the smallest common card that fits a peak of so many bytes, or None."""
    return next((device for device in COMMON if peak <= room_of(device)), None)


def card_name(card: Device) -> str:
    """Name a card with its memory: "4090 (24 GB)"."""
    return f"{card.name} ({card.memory / 10**9:.0f} GB)"


def lever_of(steps: Sequence[StepFigures], tried: LeverPeak | None = None) -> Hint | None:
    """Return what saves the most: checkpointing, by the difference of both steps, or a remedy for the last step.

    Of the remedies for states only the one that was `tried`, if any, counts, with what it saves over the best step.
    """
    hints = list(hints_of(steps[-1]))
    if len(steps) > 1:
        saved = steps[0].peak_bytes - steps[-1].peak_bytes
        hints = [*(hint for hint in hints if hint.remedy is not Remedy.CHECKPOINT), Hint(Remedy.CHECKPOINT, saved)]
    if tried is not None:
        saved = _best(steps).peak_bytes - tried.peak_bytes
        remedy = next(remedy for remedy, lever in _STATES.items() if lever is tried.lever)
        hints = [*(hint for hint in hints if hint.remedy not in _STATES), Hint(remedy, saved)]
    return max((hint for hint in hints if hint.bytes > 0), key=lambda hint: hint.bytes, default=None)


def state_lever_of(steps: Sequence[StepFigures]) -> StateLever | None:
    """Return the lever on states if it may save the most and so is worth trying, else None."""
    lever = lever_of(steps)
    return None if lever is None else _STATES.get(lever.remedy)


def answer_line(steps: Sequence[StepFigures], asked: Device | None, tried: LeverPeak | None = None) -> str:
    """Say on which card a model's steps fit, and which lever saves the most.

    `steps` are one without checkpointing, one with it, or both in this order. The card is the one asked for, or the
    smallest common card that fits one of them. `tried` is the last step's peak with the lever of `state_lever_of`;
    without it, the line gives the most that this lever may save.
    """
    best = _best(steps)
    card = asked or smallest_card(best.peak_bytes)
    needed = f"{size(steps[0].peak_bytes)} {'with' if steps[0].checkpointed else 'without'} checkpointing"
    needed += f", {size(steps[1].peak_bytes)} with it" if len(steps) > 1 else ""
    room = 0 if card is None else room_of(card)
    if card is None:
        said = f"Fits on no common card: {needed}."
    else:
        if best.peak_bytes > room:
            larger = smallest_card(best.peak_bytes)
            fits = f"Does not fit on {card_name(card)}{f', but on {card_name(larger)}' if larger else ''}"
        else:
            fits = f"Fits on {card_name(card)}"
            if len(steps) > 1:
                fits += " as it is" if steps[0].peak_bytes <= room else " with checkpointing"
            fits += "" if asked else ", the smallest common card"
        said = f"{fits}: {needed}, of {size(room)} ({percent(1 - MARGIN)} of its memory)."
    lever = lever_of(steps, tried)
    if lever is None:
        return said
    said += f" Most effect: {_LEVERS[lever.remedy]}, "
    if lever.remedy not in _STATES:
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


def _best(steps: Sequence[StepFigures]) -> StepFigures:
    return min(steps, key=lambda step: step.peak_bytes)


def plan_line(
    memory: int, name: str, before: StepFigures, planned: StepFigures, levers: Sequence[LeverPeak] = ()
) -> str:
    """Say that a plan called `name` fits into `memory`, from the steps before it and with it, and what saves more.

    `levers` are those that were tried on top of everything that a plan can do.
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
    return planned is not before and any(hint.remedy in _STATES and hint.bytes > saved for hint in hints_of(planned))


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
    return said + (f". The smallest common card that it fits on as it is: {card_name(card)}" if card else "")
