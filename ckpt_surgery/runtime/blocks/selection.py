"""Which blocks of a model to checkpoint: the outermost ones of every stack that the options name.

Decides only; nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.runtime.blocks.discovery import Block, find_blocks, is_layer, is_wrapped
from ckpt_surgery.runtime.blocks.levels import chosen_level
from ckpt_surgery.runtime.blocks.repeated import reason_for_none, repeated_blocks, repeated_siblings, siblings_around
from ckpt_surgery.runtime.surgery.options import SurgeryOptions, matches


class LeftAlone(Enum):
    """Why a block is not checkpointed."""

    BLOCKS = auto()
    """The option `blocks` names other classes."""
    STACKS = auto()
    """The option `stacks` names other stacks, or other blocks."""
    SWITCHED_OFF = auto()
    EVERY_N = auto()
    FIRST = auto()
    """The option `first` names fewer blocks."""
    FROZEN = auto()
    """Neither its parameters nor its inputs need gradient; the inputs of a later call may."""
    WRAPPED = auto()
    """torch's `checkpoint_wrapper` checkpoints it already."""


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


def select_stacks(model: nn.Module, options: SurgeryOptions) -> tuple[SelectedStack, ...]:
    """Every stack of `model`; one whose blocks are named only in part comes as two.

    Raises SurgeryError where there is none, or where an option names what is not there.
    """
    names, patterns = options.blocks, options.stacks
    parameters: Iterator[tuple[str, Any]] = model.named_parameters()
    lazy = next((name for name, parameter in parameters if is_lazy(parameter)), None)
    if lazy is not None:
        raise SurgeryError(f"{lazy} has no size before the first forward: run one, then wrap_blocks")
    found = find_blocks(model, unsupported=True)
    repeated = repeated_blocks(model, found)
    if not found:
        repeated = (*repeated, *siblings_around(model, repeated)) or repeated_siblings(model)
    blocks = at_chosen_level(model, (*found, *repeated))
    if names is not None:
        blocks = _with_named(model, blocks, names)
    if not blocks:
        raise SurgeryError(
            f"{type(model).__name__} has no blocks to checkpoint: {reason_for_none(model)}; name the class of its "
            "blocks with blocks="
        )
    modules = dict(model.named_modules())
    stacks: dict[tuple[str, LeftAlone | None], list[Block]] = {}
    for block in blocks:
        reason = _left_alone(block, names, patterns, wrapped=is_wrapped(block.name, modules))
        stacks.setdefault((block.stack, reason), []).append(block)
    names_of_stacks = list(dict.fromkeys(name for name, _ in stacks))
    _check_patterns(patterns or (), names_of_stacks, [block.name for block in blocks])
    _check_patterns([pattern for pattern, _ in options.first or ()], names_of_stacks)
    selected = tuple(SelectedStack(name, tuple(members), reason) for (name, reason), members in stacks.items())
    if any(stack.wanted for stack in selected):
        return selected
    if any(stack.left_alone is LeftAlone.WRAPPED for stack in selected):
        raise SurgeryError(
            f"the blocks of {type(model).__name__} are checkpointed by torch's checkpoint_wrapper already: build the "
            "model without it, and call wrap_blocks"
        )
    raise SurgeryError(
        f"no block of {' or '.join(names or ())} in the stacks {', '.join(patterns or ())}: give fewer of the two"
    )


def at_chosen_level(model: nn.Module, blocks: Iterable[Block]) -> tuple[Block, ...]:
    """Of blocks that lie in one another, those to checkpoint; in the order of the model."""
    by_name = {block.name: replace(block, inside="") for block in blocks}
    chosen = set(chosen_level({name: block.module for name, block in by_name.items()}))
    return tuple(by_name[name] for name, _ in model.named_modules() if name in chosen)


def _left_alone(
    block: Block, names: Sequence[str] | None, patterns: Sequence[str] | None, *, wrapped: bool
) -> LeftAlone | None:
    if patterns is not None and not any(
        matches(n, pattern) for pattern in patterns for n in (block.stack, block.name)
    ):
        return LeftAlone.STACKS
    if names is not None and type(block.module).__name__ not in names:
        return LeftAlone.BLOCKS
    return LeftAlone.WRAPPED if wrapped else None


def _with_named(model: nn.Module, blocks: Sequence[Block], names: Sequence[str]) -> tuple[Block, ...]:
    """`blocks`, but in place of those around or inside modules of the named classes the outermost of these."""
    named = {path: module for path, module in model.named_modules() if type(module).__name__ in names and path}
    missing = [name for name in names if name not in {type(module).__name__ for module in named.values()}]
    if missing:
        kinds = ", ".join(sorted({type(block.module).__name__ for block in blocks})) or "none"
        raise SurgeryError(
            f"no block of the class {missing[0]} in {type(model).__name__}: its block classes are {kinds}"
        )
    outermost = [path for path in named if not any(path.startswith(f"{other}.") for other in named)]
    chosen = [
        Block(path, named[path], "layer" if is_layer(named[path]) else "plain", path.rpartition(".")[0])
        for path in outermost
    ]
    others = [block for block in blocks if not _related(block.name, outermost)]
    order = {path: place for place, (path, _) in enumerate(model.named_modules())}
    return tuple(sorted([*chosen, *others], key=lambda block: order[block.name]))


def _related(name: str, others: Iterable[str]) -> bool:
    return any(f"{name}.".startswith(f"{other}.") or f"{other}.".startswith(f"{name}.") for other in others)


def _check_patterns(patterns: Sequence[str], stacks: Sequence[str], blocks: Sequence[str] = ()) -> None:
    for pattern in patterns:
        if not any(matches(name, pattern) for name in (*stacks, *blocks)):
            raise SurgeryError(f"no stack matches {pattern!r}: the stacks are {', '.join(stacks)}")
