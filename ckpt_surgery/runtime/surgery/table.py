"""The table that a printed surgery shows: the words for its summary."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ckpt_surgery.runtime.blocks.selection import LeftAlone
from ckpt_surgery.runtime.selective.kept_summary import KeptSummary
from ckpt_surgery.runtime.surgery.checkpointing import Checkpointing
from ckpt_surgery.runtime.surgery.summary import BlockRepair, StackSummary, SurgerySummary
from ckpt_surgery.text import text_table

_LEFT_ALONE = {
    LeftAlone.BLOCKS: "not among the blocks",
    LeftAlone.STACKS: "not among the stacks",
    LeftAlone.SWITCHED_OFF: "switched off",
    LeftAlone.EVERY_N: "left out by every_n",
    LeftAlone.FIRST: "left out by first",
    LeftAlone.FROZEN: "frozen: while its inputs need no gradient",
    LeftAlone.WRAPPED: "checkpointed by torch's checkpoint_wrapper",
}
_NUMBER = re.compile(r"\b\d+\b")
_DONE = {"layer": "calls repaired", "plain": "plain module made to checkpoint"}


def surgery_table(summary: SurgerySummary) -> str:
    """What is checkpointed, and a line for each class of blocks in each stack, as plain text.

    Stacks whose names differ in numbers alone share a line where they are alike.
    """
    alike: dict[tuple[str, str, str, str], list[StackSummary]] = {}
    for stack in summary.stacks:
        how = "" if stack.repair is None else _repair(stack.repair)
        reasons = ", ".join(_LEFT_ALONE[reason] for reason in stack.left_alone)
        alike.setdefault((_NUMBER.sub("*", stack.stack), stack.block_class, how, reasons), []).append(stack)
    rows = [
        (
            (stacks[0].stack if len(stacks) == 1 else pattern) or "(the model)",
            block_class,
            f"{sum(s.checkpointed for s in stacks)} of {sum(s.blocks for s in stacks)}",
            how,
            reasons,
        )
        for (pattern, block_class, how, reasons), stacks in alike.items()
    ]
    done, total = (sum(counts) for counts in zip(*((s.checkpointed, s.blocks) for s in summary.stacks), strict=True))
    lines = text_table(("stack", "block", "checkpointed", "how", "left alone"), rows, right="checkpointed")
    left = [f"{count} {name}" for name, count in summary.left_to_library.items()]
    footer = [f"left to their own switch: {', '.join(left)}"] if left else []
    if isinstance(summary.function, Checkpointing) and summary.function.options.use_reentrant:
        footer.append("asked for use_reentrant=True: runs non-reentrant, with the same gradients")
    footer += [_kept(kept, summary.function) for kept in summary.kept]
    return "\n".join([f"{summary.model_class}: {done} of {total} blocks {_manner(summary.function)}", *lines, *footer])


def _manner(function: Callable[..., Any] | None) -> str:
    if function is None:
        return "checkpointed (switched off)"
    if not isinstance(function, Checkpointing):
        return f"checkpointed by {getattr(function, '__qualname__', type(function).__name__)}"
    return "checkpointed, non-reentrant" + (f", inputs kept {_place(function)}" if function.offloader else "")


def _place(function: Checkpointing) -> str:
    return "on the host" if function.options.offload == "cpu" else "on disk"


def _kept(kept: KeptSummary, function: Callable[..., Any] | None) -> str:
    moves = isinstance(function, Checkpointing) and function.options.save_offload
    return kept.line(_place(function) if moves and isinstance(function, Checkpointing) else "")


def _repair(repair: BlockRepair) -> str:
    inline = ["inline branch off"] if repair.inline_off else []
    stages = ["layers around them off"] if repair.stages_off else []
    nested = [f"{repair.nested_off} nested off"] if repair.nested_off else []
    return ", ".join([_DONE[repair.kind], *inline, *stages, *nested])
