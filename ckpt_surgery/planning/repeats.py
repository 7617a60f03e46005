"""Infer what a step with many alike blocks allocates from a step with a few of them.

This is proved for each model first: what is inferred must match, allocation for allocation, a step with all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce

from torch import nn

from ckpt_surgery.errors import CkptSurgeryError
from ckpt_surgery.planning.allocations import Allocation, AllocationKind, StepAllocations, StepPhase
from ckpt_surgery.runtime.surgery.surgery import surgeries_in


@dataclass(frozen=True, slots=True)
class Repeat:
    """A run of equal units, by the names of their blocks: `unit` stands for those `left_out`; `following` comes next.

    A unit is one block, or those of one period if kinds of layers alternate. What a unit makes is used only by units
    at most `reach` away, or by all of them.
    """

    unit: tuple[str, ...]
    left_out: tuple[tuple[str, ...], ...]
    following: tuple[str, ...]
    reach: int

    @classmethod
    def longest(cls, alike: Sequence[Hashable], names: Sequence[str], reach: int) -> list[Repeat]:
        """Find the longest run of alike units of blocks, if any of them can be left out.

        What stays is the unit, `reach` units on each side, and the last one, whose backward runs first.
        """
        stay = 2 * (reach + 1)
        most, size, start, units = 0, 0, 0, 0
        for length in range(1, min(_LONGEST_UNIT, len(names)) + 1):
            begin = 0
            for end in range(len(alike) + 1):
                if end == len(alike) or (end - length >= begin and alike[end] != alike[end - length]):
                    count = (end - begin) // length
                    if length * (count - stay) > most:
                        most, size, start, units = length * (count - stay), length, begin, count
                    begin = end - length + 1
        if not most:
            return []
        every = [tuple(names[start + size * place : start + size * (place + 1)]) for place in range(units)]
        return [cls(every[reach], tuple(every[reach + 1 : -reach - 1]), every[-reach - 1], reach)]


class _Repeated:
    """A step that ran without the blocks left out of a repeat, and the numbers that its operators have with them.

    `block_of` returns the block that a module is in. Raises ValueError if the unit did not run once forward and once
    backward.

    The unit runs forward in `_forward` operators from number `_begin` on, and backward in `_backward` up to `_end`. It
    and the units within reach after it run forward before `_with_followers`, and backward after `_before_unit`.
    """

    def __init__(self, step: StepAllocations, repeat: Repeat, block_of: Callable[[str], str]) -> None:
        self._step, self._repeat = step, repeat
        self._times = len(repeat.left_out)
        own, following = set(repeat.unit), set(repeat.following)
        # numbers of operators, by: in the unit (else in the one that follows), and in the forward (else later)
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
        own_work = [each for each in old.work if self._is_own(each.number)]
        allocations = [
            replace(each, born=self._moved(each.born), died=self._death(each))
            for each in old.allocations
            if not self._is_own(each.born)
        ]
        work = [replace(each, number=self._moved(each.number)) for each in old.work if not self._is_own(each.number)]
        for copy in range(times + 1):
            renamed = self._renaming(copy)
            allocations += [
                replace(
                    each,
                    place=replace(each.place, module=renamed(each.place.module)),
                    kept_at=replace(each.kept_at, module=renamed(each.kept_at.module)),
                    born=self._copied(each.born, copy),
                    died=self._death_in_copy(each, copy),
                )
                for each in own
            ]
            work += [replace(w, module=renamed(w.module), number=self._copied(w.number, copy)) for w in own_work]
        flops = {phase: times * sum(each.flops for each in own_work if each.phase is phase) for phase in StepPhase}
        return replace(
            old,
            allocations=tuple(sorted(allocations, key=lambda each: each.born)),
            kept_bytes=old.kept_bytes + times * sum(each.bytes for each in own if each.kind is AllocationKind.KEPT),
            operators=old.operators + self._all_forward + self._all_backward,
            backward_at=old.backward_at + self._all_forward,
            forward_flops=old.forward_flops + flops[StepPhase.FORWARD],
            backward_flops=old.backward_flops + flops[StepPhase.RECOMPUTE] + flops[StepPhase.BACKWARD],
            work=tuple(sorted(work, key=lambda each: each.number)),
        )

    def _is_own(self, number: int) -> bool:
        forward = self._begin <= number < self._begin + self._forward
        return forward or self._end - self._backward < number <= self._end

    def _moved(self, number: int) -> int:
        """Renumber an operator outside the unit."""
        if number < self._begin:
            return number
        return number + self._all_forward + (self._all_backward if number > self._end else 0)

    def _copied(self, number: int, copy: int) -> int:
        """Renumber an operator of the unit for one of its copies; copy 0 is the unit."""
        if number <= self._step.backward_at:
            return number + copy * self._forward
        return number + self._all_forward + (self._times - copy) * self._backward

    def _death(self, of: Allocation) -> int:
        """Renumber the end of an allocation from outside the unit: as near the unit as before, or after all copies."""
        number, before = of.died, of.born < self._begin
        if number == self._step.operators:
            return number + self._all_forward + self._all_backward
        if number <= self._step.backward_at:
            return number if before and number < self._with_followers else number + self._all_forward
        last_to_stay = self._before_unit if before else self._end + (self._repeat.reach - 1) * self._backward
        stays = of.born <= self._end and number <= last_to_stay
        return number + self._all_forward + (0 if stays else self._all_backward)

    def _death_in_copy(self, of: Allocation, copy: int) -> int:
        """Renumber the end of an allocation in a copy of the unit: near that copy, or after all copies."""
        number = of.died
        if number == self._step.operators:
            return number + self._all_forward + self._all_backward
        if number <= self._step.backward_at:
            return number + (copy * self._forward if number < self._with_followers else self._all_forward)
        if number <= self._before_unit:
            return number + self._all_forward
        with_neighbours = number <= self._end + self._repeat.reach * self._backward
        return number + self._all_forward + (self._times - (copy if with_neighbours else 0)) * self._backward

    def _renaming(self, copy: int) -> Callable[[str], str]:
        """Return a function that renames modules of the unit, and of what follows, for a copy."""
        units = (self._repeat.unit, *self._repeat.left_out, self._repeat.following)
        old = (*self._repeat.unit, *self._repeat.following)
        new = dict(zip(old, (*units[copy], *units[copy + 1]), strict=True))

        def renamed(module: str) -> str:
            block = next((name for name in new if module == name or module.startswith(f"{name}.")), "")
            return new[block] + module.removeprefix(block) if block else module

        return renamed


_LONGEST_UNIT = 12
"""The most blocks in a unit: patterns of layers repeat after four to eight."""


class RepeatedBlocks:
    """The runs of equal blocks in a model, found in a step with all of them; `stacks` are the names of the blocks."""

    def __init__(
        self,
        model: nn.Module,
        stacks: Mapping[str, Sequence[str]],
        block_of: Callable[[str], str],
        step: StepAllocations,
        reach: int,
    ) -> None:
        self._model, self._block_of = model, block_of
        made: defaultdict[str, Counter[Hashable]] = defaultdict(Counter)
        for each in step.allocations:
            if each.kind is not AllocationKind.GATHERED and (block := block_of(each.place.module)):
                inside, line = each.place.module.removeprefix(block), each.place.line
                made[block][inside, line, each.operator, each.phase, each.kind, each.shape, each.bytes] += 1
        self._repeats: list[Repeat] = []
        for names in stacks.values():
            alike = [(_likeness(model.get_submodule(name)), frozenset(made[name].items())) for name in names]
            self._repeats += Repeat.longest(alike, names, reach)
        self._left_out = [name for repeat in self._repeats for unit in repeat.left_out for name in unit]
        self.most_left_out = 2 * len(self._left_out) > sum(map(len, stacks.values()))
        """Whether steps are so much shorter without these that it is worth the proof."""

    def step(self, run: Callable[[], StepAllocations]) -> StepAllocations | None:
        """Infer what a step of the model allocates from running one with few blocks; return None if that fails."""
        try:
            with _without_blocks(self._model, self._left_out):
                short = run()
            return reduce(lambda step, repeat: _Repeated(step, repeat, self._block_of).step(), self._repeats, short)
        except (CkptSurgeryError, ValueError):  # the model needs all of its blocks
            return None

    def proved(self, whole: StepAllocations, run: Callable[[], StepAllocations]) -> bool:
        """Tell whether what is inferred from a step with few blocks is exactly the step with all of them."""
        inferred = self.step(run)
        return inferred is not None and inferred.is_same_step(whole)


def _likeness(block: nn.Module) -> Hashable:
    """Return what alike blocks share: their modules, the shapes of parameters, and the options that code reads."""
    parameters = tuple((name, tuple(p.shape), p.dtype, p.requires_grad) for name, p in block.named_parameters())
    options = [
        (type(module), name, None if type(value) is int else value)  # each block has its own number
        for module in block.modules()
        for name, value in [("", None), *vars(module).items()]
        if value is None or isinstance(value, (str, bool, int, float))
    ]
    return parameters, tuple(options)


@contextmanager
def _without_blocks(model: nn.Module, names: Iterable[str]) -> Iterator[None]:
    """Take blocks out of the lists that hold them inside the `with`. The model has no gradients afterwards."""
    before: dict[nn.Module, dict[str, nn.Module | None]] = {}
    policies = [policy for surgery in surgeries_in(model) for policy in surgery.policies]
    try:
        for name in names:
            parent, _, own = name.rpartition(".")
            holder = model.get_submodule(parent)
            before.setdefault(holder, dict(holder._modules))
            del holder._modules[own]
            for policy in policies:
                policy.left_out(name)
        yield
    finally:
        for holder, modules in before.items():
            holder._modules.clear()
            holder._modules.update(modules)
        model.zero_grad()
