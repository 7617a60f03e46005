"""Infer what a step with many alike blocks allocates from a step with a few of them.

This is proved for each model first: a step with all blocks must match, allocation for allocation, what a step with few
of them says.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce

from torch import nn

from ckpt_surgery.errors import CkptSurgeryError
from ckpt_surgery.planning.allocations import AllocationKind, StepAllocations
from ckpt_surgery.planning.repeated_step import Repeat, same_step, with_blocks
from ckpt_surgery.runtime.surgery.surgery import surgeries_in

_LONGEST_UNIT = 12
"""The most blocks in a unit: patterns of layers repeat after four to eight."""


class RepeatedBlocks:
    """The runs of equal blocks in a model, as seen in a step with all of them; `stacks` are its blocks' names."""

    def __init__(
        self,
        model: nn.Module,
        stacks: Mapping[str, Sequence[str]],
        block_of: Callable[[str], str],
        step: StepAllocations,
        reach: int,
    ) -> None:
        self._model, self._block_of = model, block_of
        made = _made_by(step, block_of)
        self._repeats = [
            repeat
            for names in stacks.values()
            for repeat in _repeats([(_shape(model.get_submodule(name)), made[name]) for name in names], names, reach)
        ]
        self._left_out = [name for repeat in self._repeats for unit in repeat.left_out for name in unit]
        self.most_left_out = 2 * len(self._left_out) > sum(map(len, stacks.values()))
        """Whether steps are so much shorter that they are worth the proof."""

    def step(self, run: Callable[[], StepAllocations]) -> StepAllocations | None:
        """Return what a step of the model allocates, from running one with few blocks; None if that fails."""
        try:
            with _without_blocks(self._model, self._left_out):
                short = run()
            return reduce(lambda step, repeat: with_blocks(step, repeat, self._block_of), self._repeats, short)
        except (CkptSurgeryError, ValueError):  # the model needs all of its blocks
            return None

    def proved(self, whole: StepAllocations, run: Callable[[], StepAllocations]) -> bool:
        """Tell whether a step with few blocks says exactly what one with all of them allocates."""
        told = self.step(run)
        return told is not None and same_step(told, whole)


def _made_by(step: StepAllocations, block_of: Callable[[str], str]) -> Mapping[str, Hashable]:
    """Return what each block allocates, in a form that is equal for alike blocks."""
    made: defaultdict[str, Counter[Hashable]] = defaultdict(Counter)
    for each in step.allocations:
        if each.kind is not AllocationKind.GATHERED and (block := block_of(each.place.module)):
            inside = each.place.module.removeprefix(block)
            made[block][inside, each.place.line, each.operator, each.phase, each.kind, each.shape, each.bytes] += 1
    return defaultdict(frozenset, {block: frozenset(counts.items()) for block, counts in made.items()})


def _shape(block: nn.Module) -> Hashable:
    """Return what alike blocks share: their modules, the shapes of parameters, and the options that code reads."""
    parameters = tuple((name, tuple(p.shape), p.dtype, p.requires_grad) for name, p in block.named_parameters())
    return parameters, tuple((type(module), _options(module)) for module in block.modules())


def _options(module: nn.Module) -> Hashable:
    """Return the plain attributes of a module, integers by name only: each block has its own number."""
    return tuple(
        (name, None if type(value) is int else value)
        for name, value in vars(module).items()
        if value is None or isinstance(value, (str, bool, int, float))
    )


def _repeats(alike: Sequence[Hashable], names: Sequence[str], reach: int) -> list[Repeat]:
    """Find the longest run of alike units of blocks, if any of them can be left out.

    The unit, `reach` units on each side, and the last one, whose backward is the first, stay.
    """
    stay = 2 * (reach + 1)
    runs = [_run(alike, size) for size in range(1, min(_LONGEST_UNIT, len(names)) + 1)]
    size, start, units = max(runs, key=lambda run: (run[0] * (run[2] - stay), -run[0]), default=(1, 0, 0))
    if units <= stay:
        return []
    every = [tuple(names[start + size * at : start + size * (at + 1)]) for at in range(units)]
    return [Repeat(every[reach], tuple(every[reach + 1 : -reach - 1]), every[-reach - 1], reach)]


def _run(alike: Sequence[Hashable], size: int) -> tuple[int, int, int]:
    """Find the longest run that repeats after `size` blocks: return `size`, its start and its number of units."""
    best, start = (size, 0, 0), 0
    for at in range(len(alike) + 1):
        if at == len(alike) or (at - size >= start and alike[at] != alike[at - size]):
            if (units := (at - start) // size) > best[2]:
                best = (size, start, units)
            start = at - size + 1
    return best


@contextmanager
def _without_blocks(model: nn.Module, names: Iterable[str]) -> Iterator[None]:
    """Take blocks out of the lists that hold them. They have no gradients afterwards, even if they ran."""
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
