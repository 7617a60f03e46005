"""Which blocks of a model to checkpoint: the outermost ones of every stack, as far as the options want them.

Decides only; nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.runtime.discovery import Block, find_blocks, is_layer

_WORDS = {str: "a name", type: "a class"}


@dataclass(frozen=True, slots=True, eq=False)
class StackPlan:
    """The blocks of one stack in their order; `wanted` tells whether the options name it, and if not, `why`."""

    name: str
    blocks: tuple[Block, ...]
    wanted: bool
    why: str = ""


def make_plan(
    model: nn.Module, towers: str | Iterable[str] | None, classes: str | type | Iterable[str | type] | None
) -> tuple[StackPlan, ...]:
    """Every stack of `model`; raises SurgeryError where there is none, or where an option names what is not there."""
    found = find_blocks(model, unsupported=True)
    names = None if classes is None else _class_names(classes)
    if names is not None:
        found = _of_classes(model, found, names)
    outermost = [block for block in found if not block.inside]
    if not outermost:
        raise SurgeryError(
            f"{type(model).__name__} has no blocks to checkpoint: no stack of repeated modules was found"
        )
    stacks: dict[tuple[str, bool], list[Block]] = {}
    for block in outermost:
        stacks.setdefault((block.stack, names is None or type(block.module).__name__ in names), []).append(block)
    patterns = None if towers is None else _patterns(towers)
    if patterns is not None:
        _check_patterns(patterns, list(dict.fromkeys(name for name, _ in stacks)))
    plans = tuple(_stack_plan(name, blocks, named, patterns) for (name, named), blocks in stacks.items())
    if not any(plan.wanted for plan in plans):
        raise SurgeryError(
            f"no block of {' or '.join(names or ())} in the towers {', '.join(patterns or ())}: give fewer of the two"
        )
    return plans


def _stack_plan(name: str, blocks: Sequence[Block], named: bool, patterns: list[str] | None) -> StackPlan:
    why = "" if named else "not among the blocks"
    if patterns is not None and not any(_matches(name, pattern) for pattern in patterns):
        why = "not among the towers"
    return StackPlan(name, tuple(blocks), not why, why)


def _of_classes(model: nn.Module, found: Sequence[Block], names: list[str]) -> tuple[Block, ...]:
    """What was found, but those of the named classes as they are: the outermost of them, whatever is around them."""
    named = {path: module for path, module in model.named_modules() if type(module).__name__ in names and path}
    missing = [name for name in names if name not in {type(module).__name__ for module in named.values()}]
    if missing:
        known = ", ".join(sorted({type(block.module).__name__ for block in found})) or "none"
        raise SurgeryError(
            f"no block of the class {missing[0]} in {type(model).__name__}: its block classes are {known}"
        )
    outermost = [path for path in named if not any(path.startswith(f"{other}.") for other in named)]
    chosen = [
        Block(path, named[path], "layer" if is_layer(named[path]) else "plain", path.rpartition(".")[0])
        for path in outermost
    ]
    others = [block for block in found if not block.inside and not _related(block.name, outermost)]
    order = {path: place for place, (path, _) in enumerate(model.named_modules())}
    return tuple(sorted([*chosen, *others], key=lambda block: order[block.name]))


def _related(name: str, others: Iterable[str]) -> bool:
    return any(f"{name}.".startswith(f"{other}.") or f"{other}.".startswith(f"{name}.") for other in others)


def _check_patterns(patterns: list[str], stacks: list[str]) -> None:
    for pattern in patterns:
        if not any(_matches(name, pattern) for name in stacks):
            raise SurgeryError(f"no tower matches {pattern!r}: the stacks are {', '.join(stacks)}")


def _matches(stack: str, pattern: str) -> bool:
    """A pattern names a stack, or a module around it."""
    return fnmatchcase(stack, pattern) or fnmatchcase(stack, f"{pattern}.*")


def _class_names(classes: str | type | Iterable[str | type]) -> list[str]:
    return [name if isinstance(name, str) else name.__name__ for name in _several(classes, "blocks", (str, type))]


def _patterns(towers: str | Iterable[str]) -> list[str]:
    return _several(towers, "towers", (str,))


def _several(given: Any, option: str, kinds: tuple[type, ...]) -> list[Any]:
    """One value or several, each of one of these kinds. Raises SurgeryError."""
    values = [given] if isinstance(given, kinds) or not isinstance(given, Iterable) else list(given)
    if not values:
        raise SurgeryError(f"{option} names nothing: leave it out for everything")
    if not all(isinstance(value, kinds) for value in values):
        raise SurgeryError(f"{option} is {given!r}: give {' or '.join(_WORDS[kind] for kind in kinds)}, or several")
    return values
