"""Summarize what a surgery did to each stack of its model, as data and as a table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from ckpt_surgery.runtime.blocks.discovery import Block, enclosing, is_layer
from ckpt_surgery.runtime.blocks.library_switch import flags_of, has_inline_branch
from ckpt_surgery.runtime.blocks.selection import LeftAlone, SelectedStack
from ckpt_surgery.runtime.checkpoint.block_forward import BlockForward
from ckpt_surgery.runtime.selective.kept_summary import KeptSummary
from ckpt_surgery.runtime.surgery.checkpointing import Checkpointing
from ckpt_surgery.runtime.surgery.options import SurgeryOptions
from ckpt_surgery.text import text_table

_NUMBER = re.compile(r"\b\d+\b")


@dataclass(frozen=True, slots=True)
class BlockRepair:
    """The repair of the blocks of one class in one stack.

    A block of kind "layer" checkpoints by its class, and a "plain" one is made to. `inline_off` says whether the
    inline branch of a module around them is switched off, `stages_off` whether a checkpointing layer around them is,
    and `nested_off` counts the checkpointing layers inside a block that are.
    """

    kind: Literal["layer", "plain"]
    inline_off: bool
    stages_off: bool
    nested_off: int

    def __str__(self) -> str:
        words = ["checkpointed" if self.kind == "layer" else "checkpointed, a plain module"]
        words += ["inline branch off"] if self.inline_off else []
        words += ["layers around them off"] if self.stages_off else []
        words += [f"{self.nested_off} nested off"] if self.nested_off else []
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class StackSummary:
    """The blocks of one class in one stack: how many of them are checkpointed, and why others are not."""

    stack: str
    block_class: str
    checkpointed: int
    blocks: int
    repair: BlockRepair | None
    left_alone: tuple[LeftAlone, ...]


@dataclass(frozen=True, slots=True)
class SurgerySummary:
    """A summary of one surgery; `function` checkpoints, and is None while checkpointing is switched off.

    `left_to_library` counts, by class, the modules in and around no block that checkpoint by themselves.
    `kept` is what `save` kept, name by name.
    """

    model_class: str
    function: Callable[..., Any] | None
    stacks: tuple[StackSummary, ...]
    left_to_library: Mapping[str, int]
    kept: tuple[KeptSummary, ...] = ()

    def __str__(self) -> str:
        """Return the table: a line for each class of blocks in each stack.

        Stacks whose names differ only in numbers share a line if they are alike.
        """
        alike: dict[tuple[str, str, str, str], list[StackSummary]] = {}
        for stack in self.stacks:
            how = "" if stack.repair is None else str(stack.repair)
            reasons = ", ".join(stack.left_alone)
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
        lines = text_table(("stack", "block", "checkpointed", "how", "left alone"), rows, right="checkpointed")
        checkpointed, total = sum(s.checkpointed for s in self.stacks), sum(s.blocks for s in self.stacks)
        manner, where, left = "checkpointed (switched off)", "", self.left_to_library
        footer = [f"left to their own switch: {', '.join(f'{n} {name}' for name, n in left.items())}"] if left else []
        if isinstance(self.function, Checkpointing):
            options, manner = self.function.options, "checkpointed, non-reentrant"
            where = "on the host" if options.offload == "cpu" else "on disk"
            manner += f", inputs kept {where}" if self.function.offloader else ""
            where = where if options.save.offload else ""
            if options.use_reentrant:
                footer.append("asked for use_reentrant=True: runs non-reentrant, with the same gradients")
        elif self.function is not None:
            manner = f"checkpointed by {getattr(self.function, '__qualname__', type(self.function).__name__)}"
        footer += [kept.line(where) for kept in self.kept]
        return "\n".join([f"{self.model_class}: {checkpointed} of {total} blocks {manner}", *lines, *footer])


def summaries(
    model: nn.Module,
    stacks: Iterable[SelectedStack],
    is_checkpointed: Callable[[Block], bool],
    options: SurgeryOptions,
    *,
    on: bool,
) -> Iterator[StackSummary]:
    """Yield a summary for each class of blocks in each stack of `model`; `on` is false if checkpointing is off."""
    modules = dict(model.named_modules())
    for stack in stacks:
        for kind in dict.fromkeys(type(block.module) for block in stack.blocks):
            blocks = [block for block in stack.blocks if type(block.module) is kind]
            forwards = [vars(block.module).get("forward") for block in blocks if is_checkpointed(block)]
            switched_on = len(forwards)
            active = sum(not isinstance(forward, BlockForward) or forward.in_mode for forward in forwards)
            repair, reasons = None, [stack.left_alone] if stack.left_alone is not None else []
            if stack.wanted:
                block = blocks[0]
                outside = [modules[name] for name in (*enclosing(block.name), "")]
                inline = any(not is_layer(each) and has_inline_branch(each) and flags_of(each) for each in outside)
                nested = sum(map(is_layer, block.module.modules())) - is_layer(block.module)
                repair = BlockRepair(block.kind, inline, any(map(is_layer, outside)), nested)
                limited = options.first_of(stack.name, len(blocks)) < len(blocks)
                if not on:
                    reasons = [LeftAlone.SWITCHED_OFF]
                elif limited:
                    reasons.append(LeftAlone.FIRST)
                if on and switched_on < len(blocks) and (options.every_n > 1 or not limited):
                    reasons.append(LeftAlone.EVERY_N if switched_on else LeftAlone.SWITCHED_OFF)
                if active < switched_on:
                    reasons.append(LeftAlone.EVALUATION)
                trained = any(p.requires_grad for block in blocks for p in block.module.parameters())
                if on and options.skip_frozen and not trained:
                    reasons.append(LeftAlone.FROZEN)
            yield StackSummary(stack.name, kind.__name__, active, len(blocks), repair, tuple(reasons))
