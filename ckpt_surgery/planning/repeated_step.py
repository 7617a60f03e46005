"""Rebuild the record of a whole step from one in which some of many alike blocks were left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from ckpt_surgery.planning.allocations import Allocation, AllocationKind, StepAllocations
from ckpt_surgery.planning.phases import StepPhase


@dataclass(frozen=True, slots=True)
class Repeat:
    """A run of equal units, by the names of their blocks: `unit` represents `left_out`, and `following` comes next.

    A unit is one block, or as many as a pattern of layers has. What a unit makes is used only by units at most `reach`
    away, or by all of them.
    """

    unit: tuple[str, ...]
    left_out: tuple[tuple[str, ...], ...]
    following: tuple[str, ...]
    reach: int


def with_blocks(step: StepAllocations, repeat: Repeat, block_of: Callable[[str], str]) -> StepAllocations:
    """Add to a step the blocks that were left out of it; `block_of` returns the block that a module is in.

    Raises ValueError if the unit did not run once forward and once backward.
    """
    return _Repeated(step, repeat, block_of).step()


def same_step(ours: StepAllocations, theirs: StepAllocations) -> bool:
    """Tell whether two records of a step say the same, in whatever order operators are listed."""
    totals = [
        (each.kept_bytes, each.operators, each.backward_at, each.forward_flops, each.backward_flops)
        for each in (ours, theirs)
    ]
    if totals[0] != totals[1] or Counter(ours.allocations) != Counter(theirs.allocations):
        return False
    return Counter(ours.work) == Counter(theirs.work)


class _Repeated:
    """The numbers of a step's operators, without and with the blocks that were left out.

    The unit runs forward from `begin` on, for `forward` operators, and backward until `end`, for `backward`. What
    follows it within reach has run forward before `with_followers`, and backward after `before_unit`.
    """

    def __init__(self, step: StepAllocations, repeat: Repeat, block_of: Callable[[str], str]) -> None:
        self._step, self._repeat = step, repeat
        self._times = len(repeat.left_out)
        own, following = set(repeat.unit), set(repeat.following)
        births: dict[tuple[bool, bool], list[int]] = {(a, b): [] for a in (False, True) for b in (False, True)}
        for each in step.allocations:
            block = "" if each.kind is AllocationKind.GATHERED else block_of(each.place.module)
            if block in own or block in following:
                births[block in own, each.phase is StepPhase.FORWARD].append(each.born)
        self._begin = min(births[True, True])
        self._forward = min(births[False, True]) - self._begin
        self._end = max(births[True, False])
        self._backward = self._end - max(births[False, False])
        if self._forward <= 0 or self._backward <= 0:
            raise ValueError("the unit does not run before the one that follows it, or not once")
        span = repeat.reach + 1
        self._with_followers = self._begin + span * self._forward
        self._before_unit = self._end - span * self._backward
        self._all_forward, self._all_backward = self._times * self._forward, self._times * self._backward

    def step(self) -> StepAllocations:
        """Build the whole step."""
        old, times = self._step, self._times
        own = [each for each in old.allocations if self._is_own(each.born)]
        again = [each for each in old.work if self._is_own(each.at)]
        allocations = [self._moved(each) for each in old.allocations if not self._is_own(each.born)]
        work = [replace(each, at=self._ran(each.at)) for each in old.work if not self._is_own(each.at)]
        for number in range(times + 1):
            renamed = self._names(number)
            allocations += [self._copied(each, number, renamed) for each in own]
            work += [replace(each, module=renamed(each.module), at=self._ran_again(each.at, number)) for each in again]
        flops = {phase: times * sum(each.flops for each in again if each.phase is phase) for phase in StepPhase}
        return StepAllocations(
            allocations=tuple(sorted(allocations, key=lambda each: each.born)),
            kept_bytes=old.kept_bytes + times * sum(each.bytes for each in own if each.kind is AllocationKind.KEPT),
            operators=old.operators + self._all_forward + self._all_backward,
            backward_at=old.backward_at + self._all_forward,
            forward_flops=old.forward_flops + flops[StepPhase.FORWARD],
            backward_flops=old.backward_flops + flops[StepPhase.RECOMPUTE] + flops[StepPhase.BACKWARD],
            work=tuple(sorted(work, key=lambda each: each.at)),
        )

    def _is_own(self, at: int) -> bool:
        forward = self._begin <= at < self._begin + self._forward
        return forward or self._end - self._backward < at <= self._end

    def _ran(self, at: int) -> int:
        """Renumber an operator outside the unit."""
        if at < self._begin:
            return at
        return at + self._all_forward + (self._all_backward if at > self._end else 0)

    def _ran_again(self, at: int, number: int) -> int:
        """Renumber an operator of the unit for one of its copies; copy 0 is the unit."""
        if at <= self._step.backward_at:
            return at + number * self._forward
        return at + self._all_forward + (self._times - number) * self._backward

    def _moved(self, of: Allocation) -> Allocation:
        """Renumber an allocation made outside the unit."""
        return replace(of, born=self._ran(of.born), last=self._lasts(of))

    def _copied(self, of: Allocation, number: int, renamed: Callable[[str], str]) -> Allocation:
        """Return an allocation of the unit as one of its copies makes it."""
        return replace(
            of,
            place=replace(of.place, module=renamed(of.place.module)),
            kept_at=replace(of.kept_at, module=renamed(of.kept_at.module)),
            born=self._ran_again(of.born, number),
            last=self._lasts_again(of, number),
        )

    def _lasts(self, of: Allocation) -> int:
        """Renumber the end of an allocation from outside the unit: as near the unit as before, or after all copies."""
        at, before = of.last, of.born < self._begin
        if at == self._step.operators:
            return at + self._all_forward + self._all_backward
        if at <= self._step.backward_at:
            return at if before and at < self._with_followers else at + self._all_forward
        last_to_stay = self._before_unit if before else self._end + (self._repeat.reach - 1) * self._backward
        stays = of.born <= self._end and at <= last_to_stay
        return at + self._all_forward + (0 if stays else self._all_backward)

    def _lasts_again(self, of: Allocation, number: int) -> int:
        """Do the same for a copy of the unit: with its neighbours, or after all copies."""
        at = of.last
        if at == self._step.operators:
            return at + self._all_forward + self._all_backward
        if at <= self._step.backward_at:
            return at + (number * self._forward if at < self._with_followers else self._all_forward)
        if at <= self._before_unit:
            return at + self._all_forward
        with_neighbours = at <= self._end + self._repeat.reach * self._backward
        return at + self._all_forward + (self._times - (number if with_neighbours else 0)) * self._backward

    def _names(self, number: int) -> Callable[[str], str]:
        """Return a function that renames modules of the unit, and of what follows, for a copy."""
        units = (self._repeat.unit, *self._repeat.left_out, self._repeat.following)
        old = (*self._repeat.unit, *self._repeat.following)
        new = dict(zip(old, (*units[number], *units[number + 1]), strict=True))

        def renamed(module: str) -> str:
            block = next((name for name in new if module == name or module.startswith(f"{name}.")), "")
            return new[block] + module.removeprefix(block) if block else module

        return renamed
