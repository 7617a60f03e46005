"""Choose what each block of a model does, for all of them together: the least extra time at every peak.

A block's backward frees what the block kept, and begins while all blocks before it still keep theirs. So a peak
follows from what the blocks keep, in the order of their forwards, and from what else is alive in each backward.

The solution is exact. Blocks are added one by one, and of the beginnings only those stay that no other beats in time,
in what is kept and in the peak so far: whatever follows costs all of them the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

_Way = TypeVar("_Way")


@dataclass(frozen=True, slots=True)
class Alternative:
    """One choice for a block, and its costs.

    Attributes:
        kept: bytes that the block keeps for its backward.
        own: most bytes alive in its backward, without what blocks before it keep.
        seconds: the extra time.
    """

    kept: int
    own: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Solution:
    """Each block's choice, as the index of an alternative, and the total kept, the peak and the extra time."""

    taken: tuple[int, ...]
    kept: int
    peak: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Beginning:
    """Choices for the first blocks, the last of them `taken`: their time, bytes kept and least possible peak."""

    seconds: float
    kept: int
    peak: int
    before: _Beginning | None = None
    taken: int = 0

    def choices(self) -> tuple[int, ...]:
        taken, each = [], self
        while each.before is not None:
            taken.append(each.taken)
            each = each.before
        return tuple(reversed(taken))

    def followed_by(self, block: _Beginning, following: int) -> _Beginning:
        """Extend the beginning by one block; the block after it has at least `following` bytes of its own."""
        kept = self.kept + block.kept
        peak = max(self.peak, self.kept + block.peak, kept + following)
        return _Beginning(self.seconds + block.seconds, kept, peak, self, block.taken)

    def solution(self, blocks: Sequence[Sequence[Alternative]], edges: int, loss: int) -> Solution:
        """Return the solution; of blocks of one kind, those that keep less come first, unless that raises the peak."""
        taken = list(self.choices())
        kinds: dict[tuple[tuple[int, float], ...], list[int]] = {}
        for place, alternatives in enumerate(blocks):
            kinds.setdefault(tuple((each.kept, each.seconds) for each in alternatives), []).append(place)
        for costs, places in kinds.items():
            in_order = sorted((costs[taken[place]], taken[place]) for place in places)
            for place, (_, index) in zip(places, in_order, strict=True):
                taken[place] = index
        peak = peak_of([blocks[place][index] for place, index in enumerate(taken)], edges=edges, loss=loss)
        if peak > self.peak:
            return Solution(self.choices(), self.kept, self.peak, self.seconds)
        return Solution(tuple(taken), self.kept, peak, self.seconds)


def front(blocks: Sequence[Sequence[Alternative]], *, edges: int, loss: int) -> list[Solution]:
    """Return every solution that no other beats in peak and time, from the fastest to the one with the lowest peak.

    `blocks` are the alternatives of each block, in the order of the forward. `edges` is the peak outside of blocks,
    and `loss` that between the forward and backward of the last block, without what blocks keep. Among blocks of one
    kind, whose alternatives take the same bytes and time, those that keep less come first, unless that raises the
    peak.
    """
    beginnings = [_Beginning(0.0, 0, edges)]
    least = [*(min(each.own for each in alternatives) for alternatives in blocks), loss]
    for alternatives, (_, following) in zip(blocks, pairwise(least), strict=True):
        useful = _best(_Beginning(each.seconds, each.kept, each.own, None, i) for i, each in enumerate(alternatives))
        beginnings = _best(begun.followed_by(each, following) for begun in beginnings for each in useful)
    best = unbeaten(beginnings, lambda begun: (begun.seconds, begun.peak))
    return [begun.solution(blocks, edges, loss) for begun in best]


def peak_of(taken: Sequence[Alternative], *, edges: int, loss: int) -> int:
    """Return the peak if each block takes the given alternative."""
    before, peak = 0, edges
    for each in taken:
        peak = max(peak, each.own + before)
        before += each.kept
    return max(peak, loss + before)


def unbeaten(ways: Iterable[_Way], costs: Callable[[_Way], tuple[float, int]]) -> list[_Way]:
    """Return the ways that no other beats, each slower and smaller than the last; `costs` are seconds and bytes."""
    best: list[_Way] = []
    for way in sorted(ways, key=costs):
        if not best or costs(way)[1] < costs(best[-1])[1]:
            best.append(way)
    return best


def _best(beginnings: Iterable[_Beginning]) -> list[_Beginning]:
    """Return the beginnings that no other beats in all of time, bytes and peak.

    They are visited from the fastest on. `kept`, which rises, and `peaks`, which falls, are those of the beginnings so
    far that no other beats in both.
    """
    best: list[_Beginning] = []
    kept: list[int] = []
    peaks: list[int] = []
    for each in sorted(beginnings, key=lambda begun: (begun.seconds, begun.kept, begun.peak)):
        place = bisect_right(kept, each.kept)
        if place and peaks[place - 1] <= each.peak:
            continue
        end = place
        while end < len(peaks) and peaks[end] >= each.peak:
            end += 1
        begin = place - 1 if place and kept[place - 1] == each.kept else place
        kept[begin:end], peaks[begin:end] = [each.kept], [each.peak]
        best.append(each)
    return best
