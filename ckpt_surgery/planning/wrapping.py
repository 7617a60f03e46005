"""Arguments of `wrap_blocks` that make each block of a model do what was chosen for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from glob import escape
from itertools import groupby
from typing import Any

Stacks = Mapping[str, Sequence[str]]
"""The names of the blocks, in order, by stack."""


def wanted_blocks(stacks: Stacks, checkpointed: Collection[str]) -> dict[str, Any]:
    """Return the arguments that leave out all other blocks: none, the number of first blocks, or patterns of names."""
    wanted = {stack: [block for block in blocks if block in checkpointed] for stack, blocks in stacks.items()}
    if all(len(wanted[stack]) == len(blocks) for stack, blocks in stacks.items()):
        return {}
    if all(wanted[stack] == list(blocks[: len(wanted[stack])]) for stack, blocks in stacks.items()):
        return {"first": {escape(stack): len(names) for stack, names in wanted.items()}}
    return {
        "stacks": [pattern for stack in stacks for pattern in _patterns(stack, wanted[stack], stacks[stack], stacks)]
    }


def saved_results(stacks: Stacks, checkpointed: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Return the argument that makes checkpointed blocks keep these results: none, names, or names by patterns."""
    kinds = list(dict.fromkeys(checkpointed.values()))
    if len(kinds) == 1:
        return {"save": list(kinds[0])} if kinds[0] else {}
    saved: dict[str, list[str]] = {}
    for stack, blocks in stacks.items():
        wanted = [block for block in blocks if block in checkpointed]
        for names in filter(None, kinds):
            some = [block for block in wanted if checkpointed[block] == names]
            saved |= {pattern: list(names) for pattern in _patterns(stack, some, wanted, stacks)}
    return {"save": saved}


def _patterns(stack: str, some: Sequence[str], every: Sequence[str], stacks: Iterable[str]) -> list[str]:
    """List patterns that match some blocks of a stack, none of its others, and nothing in other stacks."""
    numbers = [name.removeprefix(f"{stack}.") for name in some]
    if some and list(some) == list(every) and stack and not any(each.startswith(f"{stack}.") for each in stacks):
        return [escape(stack)]
    if not stack or not all(number.isdecimal() for number in numbers):
        return [escape(name) for name in some]
    tens = groupby(numbers, key=lambda number: number[:-1])
    return [f"{escape(stack)}.{start}{_digits(number[-1] for number in group)}" for start, group in tens]


def _digits(digits: Iterable[str]) -> str:
    """Write a pattern that matches these digits, given in their order."""
    every = "".join(digits)
    if len(every) == 1:
        return every
    return f"[{every[0]}-{every[-1]}]" if every in "0123456789" else f"[{every}]"
