"""The alternatives of several stacks, chosen together: the least extra time for so many bytes.

Solved exactly. The alternatives of the stacks are merged one after another, and of each merger only those stay that no
other beats in both bytes and time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

_Way = TypeVar("_Way")


@dataclass(frozen=True, slots=True)
class Alternative:
    """The first `checkpointed` blocks of a stack recompute: what all its blocks keep then, and the time that costs."""

    checkpointed: int
    kept: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Solution:
    """How many blocks of each stack are checkpointed, what all keep, and the extra time."""

    checkpointed: tuple[int, ...]
    kept: int
    seconds: float


def front(stacks: Sequence[Sequence[Alternative]]) -> list[Solution]:
    """Every solution that no other beats, from the fastest to the one that keeps least."""
    best = [Solution((), 0, 0.0)]
    for alternatives in stacks:
        best = unbeaten(
            (
                Solution((*done.checkpointed, way.checkpointed), done.kept + way.kept, done.seconds + way.seconds)
                for done in best
                for way in alternatives
            ),
            lambda solution: (solution.seconds, solution.kept),
        )
    return best


def unbeaten(ways: Iterable[_Way], costs: Callable[[_Way], tuple[float, int]]) -> list[_Way]:
    """Those that no other beats: each next one takes more time and fewer bytes; `costs` are its seconds and bytes."""
    best: list[_Way] = []
    for way in sorted(ways, key=costs):
        if not best or costs(way)[1] < costs(best[-1])[1]:
            best.append(way)
    return best
