"""The alternatives of several stacks, chosen together: the least extra time for so many bytes.

Solved exactly. The alternatives of the stacks are merged one after another, and of each merger only those stay that no
other beats in both bytes and time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


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
            Solution((*before.checkpointed, one.checkpointed), before.kept + one.kept, before.seconds + one.seconds)
            for before in best
            for one in alternatives
        )
    return best


def unbeaten(solutions: Iterable[Solution]) -> list[Solution]:
    """Those that no other beats: each next one takes more time and keeps fewer bytes."""
    best: list[Solution] = []
    for solution in sorted(solutions, key=lambda one: (one.seconds, one.kept)):
        if not best or solution.kept < best[-1].kept:
            best.append(solution)
    return best
