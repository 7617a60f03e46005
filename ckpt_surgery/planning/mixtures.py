"""Ways to train in which some blocks are checkpointed and others not, put together from steps that were metered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

from ckpt_surgery.planning.choices import PlanChoice
from ckpt_surgery.planning.devices import Device
from ckpt_surgery.planning.explanation import Explanation
from ckpt_surgery.planning.moments import StepMoments
from ckpt_surgery.planning.saving import Saving
from ckpt_surgery.planning.solver import Alternative, Solution, front


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One way to train, and what that costs.

    `peak_bytes` is what was measured on shapes where `measured` is set, else an estimate from steps that were.
    `extra_seconds` are those of one step on the device.
    """

    choice: PlanChoice
    kept_bytes: int
    peak_bytes: int
    extra_seconds: float
    measured: bool


@dataclass(frozen=True, slots=True)
class MeteredStep:
    """A step with a choice: what is known of it, what each block keeps, and its least seconds.

    `block_seconds` are those of each block's forward, `recomputed` those of its recompute. `handed` are the bytes of
    what a block makes and another keeps, by block, module, operator, line and shape; `made` is all that is kept.
    """

    explained: Explanation
    kept: Mapping[str, int]
    seconds: float
    block_seconds: Mapping[str, float]
    recomputed: Mapping[str, float]
    operators: frozenset[str]
    moments: StepMoments
    handed: Mapping[tuple[Any, ...], int]
    made: frozenset[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class ChangedSteps:
    """A change beside checkpointing: a step with it without and with every block checkpointed, and its own seconds."""

    choice: PlanChoice
    bare: MeteredStep
    full: MeteredStep
    seconds: float


@dataclass(frozen=True)
class Mixtures:
    """The ways with one change and one saving, which differ in how many of each stack's blocks are checkpointed.

    `stacks` are the names of their blocks. Nothing is done in `plain`, all blocks are checkpointed in `wrapped`, and
    their inputs are in host memory besides in `moved`, which is None where they stay on the device.
    """

    stacks: Mapping[str, Sequence[str]]
    plain: MeteredStep
    wrapped: MeteredStep
    changed: ChangedSteps
    saving: Saving
    moved: MeteredStep | None
    device: Device

    def rows(self) -> list[PlanRow]:
        """The ways of which no other keeps fewer bytes in less time; all are estimates."""
        bare = self.changed.bare.kept
        stacks = [
            _alternatives(
                [bare.get(block, 0) for block in blocks],
                [self._kept[block] for block in blocks],
                [self._seconds(block) for block in blocks],
            )
            for blocks in self.stacks.values()
        ]
        return [self._row(solution) for solution in front(stacks)]

    def _row(self, solution: Solution) -> PlanRow:
        bare, full = self.changed.bare, self.changed.full
        first = dict(zip(self.stacks, solution.checkpointed, strict=True))
        inside = {block for name, blocks in self.stacks.items() for block in blocks[: first[name]]}
        borders = [blocks[first[name] - 1] for name, blocks in self.stacks.items() if 0 < first[name] < len(blocks)]
        less = {block: self._handed[block] for block in borders}
        peak = full.moments.peak(
            {
                block: kept - less.get(block, 0) if block in inside else bare.kept.get(block, 0)
                for block, kept in self._kept.items()
            },
            {block: own if block in inside else bare.moments.blocks.get(block, 0) for block, own in self._own.items()},
        )
        choice = replace(self.changed.choice, first=first)
        if inside:
            choice = replace(choice, offload=self.moved is not None, save=self.saving.names)
        kept = solution.kept + self._outside - sum(less.values())
        return PlanRow(choice, kept, peak, solution.seconds + self.changed.seconds, measured=False)

    @cached_property
    def _kept(self) -> dict[str, int]:
        """What each block keeps if it is checkpointed."""
        after = self.moved or self.changed.full
        names = [block for blocks in self.stacks.values() for block in blocks]
        return {name: after.kept.get(name, 0) + self.saving.bytes.get(name, 0) for name in names}

    @cached_property
    def _own(self) -> dict[str, int]:
        """What is alive in the backward of each block if it is checkpointed, beside what blocks before it keep."""
        own = {name: held + self.saving.own.get(name, 0) for name, held in self.changed.full.moments.blocks.items()}
        if self.moved is not None:
            for name in own:
                own[name] += self.moved.moments.blocks.get(name, 0) - self.wrapped.moments.blocks.get(name, 0)
        return own

    @cached_property
    def _outside(self) -> int:
        """What is kept outside of blocks."""
        full = self.changed.full
        return full.explained.kept_bytes - sum(full.kept.get(name, 0) for name in self._kept)

    @cached_property
    def _handed(self) -> Counter[str]:
        """What the next block keeps of each block only if it is checkpointed too."""
        handed: Counter[str] = Counter()
        if self.moved is None:
            for key, held in self.wrapped.handed.items():
                handed[key[0]] += 0 if key in self.plain.made else held
        return handed

    def _seconds(self, block: str) -> float:
        """The extra time of a block if it is checkpointed."""
        recomputed = max(self.wrapped.recomputed.get(block, 0.0) - self.saving.seconds.get(block, 0.0), 0.0)
        return recomputed + (self._waiting(block, self.changed.full.kept.get(block, 0)) if self.moved else 0.0)

    def _waiting(self, block: str, moved: int) -> float:
        """The time that a block waits for so many bytes of its input, which go to the host and come back."""
        compute, transfer = self.plain.block_seconds.get(block, 0.0), moved / self.device.link
        return max(transfer - compute, 0.0) + max(transfer - 3 * compute, 0.0)


def _alternatives(before: Sequence[int], after: Sequence[int], seconds: Sequence[float]) -> list[Alternative]:
    """A stack with none, one, two ... of its first blocks checkpointed."""
    changes = [checkpointed - kept for kept, checkpointed in zip(before, after, strict=True)]
    kept = accumulate(changes, initial=sum(before))
    spent = accumulate(seconds, initial=0.0)
    return [Alternative(number, *costs) for number, costs in enumerate(zip(kept, spent, strict=True))]
