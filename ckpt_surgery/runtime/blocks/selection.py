"""Choose the blocks to checkpoint: the outermost ones of every stack that the options name.

This only decides; it changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.runtime.blocks.discovery import Block, around, count_leaves, enclosing, find_blocks, is_layer
from ckpt_surgery.runtime.blocks.repeated import repeated_blocks, repeated_siblings, why_no_blocks
from ckpt_surgery.torch_names import CheckpointWrapper

_WORTHWHILE = 0.6
"""A stage gives way to its blocks if checkpointing them keeps at most this share of what the stage holds."""
_FEWEST_SIBLINGS = 3
"""The fewest attributes of one class that are taken for blocks: two are usually towers."""


class LeftAlone(StrEnum):
    """The reasons why a block is not checkpointed, in the words of the table."""

    BLOCKS = "not among the blocks"
    STACKS = "not among the stacks"
    SWITCHED_OFF = "switched off"
    EVERY_N = "left out by every_n"
    FIRST = "left out by first"
    FROZEN = "frozen: while its inputs need no gradient"
    EVALUATION = "in evaluation mode: call model.train()"
    WRAPPED = "checkpointed by torch's checkpoint_wrapper"


@dataclass(frozen=True, slots=True, eq=False)
class SelectedStack:
    """The blocks of one stack in their order; `left_alone` says why the options leave the stack out, if they do."""

    name: str
    blocks: tuple[Block, ...]
    left_alone: LeftAlone | None = None

    @property
    def wanted(self) -> bool:
        """Whether the options name the stack."""
        return self.left_alone is None


def matches(name: str, pattern: str) -> bool:
    """Tell whether a pattern names a stack or block, or a module around it."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def select_stacks(
    model: nn.Module,
    *,
    classes: Sequence[str] | None = None,
    patterns: Sequence[str] | None = None,
    first: Sequence[str] = (),
) -> tuple[SelectedStack, ...]:
    """List every stack of `model`; a stack of which only some blocks are wanted is listed twice.

    Wanted are blocks of these `classes` whose name or stack matches one of the `patterns`; None stands for all. Raises
    SurgeryError if nothing is wanted, or a class or pattern matches nothing; those of `first` have to match a stack.
    """
    parameters: Iterator[tuple[str, Any]] = model.named_parameters()
    lazy = next((name for name, parameter in parameters if is_lazy(parameter)), None)
    if lazy is not None:
        raise SurgeryError(f"{lazy} has no size before the first forward: run one, then wrap_blocks")
    modules = dict(model.named_modules())
    blocks = _all_blocks(model, modules)
    if classes is not None:
        blocks = _with_named(model, modules, blocks, classes)
    if not blocks:
        raise SurgeryError(
            f"{type(model).__name__} has no blocks to checkpoint: {why_no_blocks(model)}; name the class of its "
            "blocks with blocks="
        )
    stacks: dict[tuple[str, LeftAlone | None], list[Block]] = {}
    for block in blocks:
        reason = None
        if patterns is not None and not any(matches(n, p) for p in patterns for n in (block.stack, block.name)):
            reason = LeftAlone.STACKS
        elif classes is not None and type(block.module).__name__ not in classes:
            reason = LeftAlone.BLOCKS
        elif any(isinstance(modules[outer], CheckpointWrapper) for outer in enclosing(block.name)):
            reason = LeftAlone.WRAPPED
        stacks.setdefault((block.stack, reason), []).append(block)
    names = list(dict.fromkeys(name for name, _ in stacks))
    for given, candidates in ((patterns or (), [*names, *(block.name for block in blocks)]), (first, names)):
        for pattern in given:
            if not any(matches(name, pattern) for name in candidates):
                raise SurgeryError(f"no stack matches {pattern!r}: the stacks are {', '.join(names)}")
    selected = tuple(SelectedStack(name, tuple(members), reason) for (name, reason), members in stacks.items())
    if any(stack.wanted for stack in selected):
        return selected
    if any(stack.left_alone is LeftAlone.WRAPPED for stack in selected):
        raise SurgeryError(
            f"the blocks of {type(model).__name__} are checkpointed by torch's checkpoint_wrapper already: build the "
            "model without it, and call wrap_blocks"
        )
    raise SurgeryError(
        f"no block of {' or '.join(classes or ())} in the stacks {', '.join(patterns or ())}: give fewer of the two"
    )


def _all_blocks(model: nn.Module, modules: dict[str, nn.Module]) -> list[Block]:
    """List the blocks of a model in its order; of those inside one another, only the ones to checkpoint."""
    found = find_blocks(model, unsupported=True)
    repeated = repeated_blocks(model, found)
    if not found:
        # repeated attributes that hold some of the blocks are stages, as in GoogLeNet
        outside = {outer for block in repeated for outer in enclosing(block.name)}
        around_them = (block for block in repeated_siblings(model, _FEWEST_SIBLINGS) if block.name in outside)
        repeated = (*repeated, *around_them) or repeated_siblings(model)
    by_name = {block.name: replace(block, inside="") for block in (*found, *repeated)}
    chosen = set(chosen_level({name: block.module for name, block in by_name.items()}))
    return [by_name[name] for name in modules if name in chosen]


def chosen_level(modules: Mapping[str, nn.Module]) -> tuple[str, ...]:
    """Choose the modules to checkpoint, by name, if some are inside others: stages, or the blocks in them.

    The choice depends on what a step keeps at its peak: the input of each block, what lies between the blocks, and all
    that one block holds while it is recomputed. A module keeps about one tensor for each of its leaves, so leaves are
    counted. Modules of one class are treated alike: the largest decides. None of the chosen modules lies in another.
    """
    inside: dict[str, list[str]] = {name: [] for name in ("", *modules)}
    by_class: dict[type[nn.Module], list[str]] = {}
    for name, module in modules.items():
        inside[around(name, modules)].append(name)
        by_class.setdefault(type(module), []).append(name)
    size = {name: count_leaves(module) for name, module in modules.items()}
    gives_way: set[type[nn.Module]] = set()

    def blocks_in(name: str) -> list[str]:
        found = []
        for inner in inside[name]:
            is_replaced = inside[inner] and type(modules[inner]) in gives_way  # not if it holds no block
            found += blocks_in(inner) if is_replaced else [inner]
        return found

    stages = [
        max(some, key=size.__getitem__) for names in by_class.values() if (some := [n for n in names if inside[n]])
    ]
    for stage in sorted(stages, key=lambda name: -name.count(".")):  # those inside others first
        blocks = [size[block] for block in blocks_in(stage)]
        between = size[stage] - sum(blocks)
        if len(blocks) > 1 and len(blocks) + between + max(blocks) <= _WORTHWHILE * size[stage]:
            gives_way.add(type(modules[stage]))
    return tuple(blocks_in(""))


def _with_named(
    model: nn.Module, modules: dict[str, nn.Module], blocks: Sequence[Block], classes: Collection[str]
) -> list[Block]:
    """Replace those of `blocks` around or inside modules of the named classes by the outermost of these modules."""
    named = {name: module for name, module in modules.items() if type(module).__name__ in classes and name}
    missing = [kind for kind in classes if kind not in {type(module).__name__ for module in named.values()}]
    if missing:
        kinds = ", ".join(sorted({type(block.module).__name__ for block in blocks})) or "none"
        raise SurgeryError(
            f"no block of the class {missing[0]} in {type(model).__name__}: its block classes are {kinds}"
        )
    chosen = {
        name: Block(name, module, "layer" if is_layer(module) else "plain", name.rpartition(".")[0])
        for name, module in named.items()
        if named.keys().isdisjoint(enclosing(name))
    }
    outside = {outer for name in chosen for outer in enclosing(name)}
    inside = {block.name for block in blocks if not chosen.keys().isdisjoint(enclosing(block.name))}
    chosen = {block.name: block for block in blocks if block.name not in outside | inside} | chosen
    return [chosen[name] for name in modules if name in chosen]
