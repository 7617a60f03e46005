"""What a surgery did to each stack of its model, as data. Words are made of it in `table`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from ckpt_surgery.runtime.blocks.discovery import Block, Kind, enclosing, is_layer
from ckpt_surgery.runtime.blocks.library_switch import has_inline_branch
from ckpt_surgery.runtime.blocks.selection import LeftAlone, SelectedStack
from ckpt_surgery.runtime.selective.kept_summary import KeptSummary
from ckpt_surgery.runtime.selective.policies import in_words
from ckpt_surgery.runtime.selective.save_policy import SavePolicy
from ckpt_surgery.runtime.surgery.options import SurgeryOptions


@dataclass(frozen=True, slots=True)
class BlockRepair:
    """What was done to the blocks of one class in one stack.

    A block of kind "layer" has its calls repaired, and a "plain" one is made to checkpoint. `inline_off` says whether
    a module around them checkpoints inline otherwise, `stages_off` whether a checkpointing layer around them would,
    and `nested_off` counts the checkpointing layers inside a block.
    """

    kind: Kind
    inline_off: bool
    stages_off: bool
    nested_off: int


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
    """What a surgery did; `function` checkpoints, and is None while checkpointing is switched off.

    `left_to_library` counts, by class, the modules that checkpoint by themselves what the surgery has no block for.
    `kept` is what `save` kept, name by name.
    """

    model_class: str
    function: Callable[..., Any] | None
    stacks: tuple[StackSummary, ...]
    left_to_library: Mapping[str, int]
    kept: tuple[KeptSummary, ...] = ()


def summarise(
    model: nn.Module,
    stacks: Iterable[SelectedStack],
    function: Callable[..., Any] | None,
    is_checkpointed: Callable[[Block], bool],
    *,
    options: SurgeryOptions,
    left_to_library: Iterable[nn.Module],
    policies: Iterable[SavePolicy] = (),
) -> SurgerySummary:
    """The summary of a surgery on `model`."""
    modules = dict(model.named_modules())
    summaries = []
    for stack in stacks:
        for kind in dict.fromkeys(type(block.module) for block in stack.blocks):
            blocks = [block for block in stack.blocks if type(block.module) is kind]
            done = sum(map(is_checkpointed, blocks))
            reasons = (
                (stack.left_alone,)
                if stack.left_alone is not None
                else _reasons(stack.name, blocks, done, options, on=function is not None)
            )
            repair = _repair(modules, blocks[0]) if stack.wanted else None
            summaries.append(StackSummary(stack.name, kind.__name__, done, len(blocks), repair, reasons))
    left = Counter(type(module).__name__ for module in left_to_library)
    return SurgerySummary(
        type(model).__name__,
        function,
        tuple(summaries),
        dict(left),
        tuple(kept for policy in policies for kept in kept_by(policy)),
    )


def kept_by(policy: SavePolicy) -> tuple[KeptSummary, ...]:
    """What each name of a policy kept in the last step."""
    return tuple(_kept(policy, name) for name in policy.save)


def _kept(policy: SavePolicy, name: str) -> KeptSummary:
    counts = {operator: count for (text, operator), count in policy.kept.items() if text == name}
    return KeptSummary(
        name,
        tuple(map(in_words, counts)),
        sum(count.results for count in counts.values()),
        sum(count.bytes for count in counts.values()),
        sum(count.flops for count in counts.values()),
        matched=name not in policy.unmatched,
        has_run=policy.has_run,
        blocks=policy.blocks,
    )


def _repair(modules: dict[str, nn.Module], block: Block) -> BlockRepair:
    around = [modules[name] for name in (*enclosing(block.name), "")]
    inline = any(not is_layer(module) and has_inline_branch(module) for module in around)
    nested = sum(is_layer(module) for module in block.module.modules()) - is_layer(block.module)
    return BlockRepair(block.kind, inline, any(map(is_layer, around)), nested)


def _reasons(
    stack: str, blocks: Sequence[Block], done: int, options: SurgeryOptions, *, on: bool
) -> tuple[LeftAlone, ...]:
    """Why blocks of a stack that the options name are not checkpointed."""
    if not on:
        return (LeftAlone.SWITCHED_OFF,)
    reasons = []
    limited = options.first_of(stack, len(blocks)) < len(blocks)
    if limited:
        reasons.append(LeftAlone.FIRST)
    if done < len(blocks) and (options.every_n > 1 or not limited):
        reasons.append(LeftAlone.EVERY_N if done else LeftAlone.SWITCHED_OFF)
    if options.skip_frozen and not any(p.requires_grad for block in blocks for p in block.module.parameters()):
        reasons.append(LeftAlone.FROZEN)
    return tuple(reasons)
