"""Add up the tensors of a step: similar ones (`Holder`), the `Peak`, and over time (`MemoryTimeline`)."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from ckpt_surgery.planning.allocations import Allocation, AllocationKind, StepAllocations, StepPhase

_MOST_POINTS = 400  # enough for a drawing 720 wide
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # a block's number in a module's name


@dataclass(frozen=True, slots=True)
class Holder:
    """Similar tensors that a step keeps: of one line, operator, dtype and shape, in modules differing only by number.

    Attributes:
        bytes: of all of them.
        count: how many there are.
        module: the innermost module that made them; numbers are `*`, as in `model.layers.*.mlp`. Empty for the loss.
        operator: what made them, such as "aten.mm".
        line: where that was called, such as "modeling_llama.py:164".
        keeper: the operator that keeps them for its backward; empty if something else does, such as a checkpoint.
        kept_at: where that was called.
        dtype: such as "bfloat16".
        shape: of one of them.
        gradient: whether they are gradients of parameters.
    """

    bytes: int
    count: int
    module: str
    operator: str
    line: str
    keeper: str
    kept_at: str
    dtype: str
    shape: tuple[int, ...]
    gradient: bool = False

    @property
    def is_repeated(self) -> bool:
        """Whether the modules have numbers in their names, as blocks do."""
        return "*" in self.module.split(".")

    @classmethod
    def grouped(cls, allocations: Iterable[Allocation]) -> tuple[Holder, ...]:
        """Group alike allocations as holders, the largest first."""
        groups: dict[tuple[Any, ...], list[Allocation]] = defaultdict(list)
        for allocation in allocations:
            place, kept_at = allocation.place, allocation.kept_at.line
            made = (_NUMBER.sub("*", place.module), allocation.operator, place.line, allocation.keeper, kept_at)
            key = (*made, allocation.dtype, allocation.shape, allocation.kind is AllocationKind.GRADIENT)
            groups[key].append(allocation)
        holders = [cls(sum(each.bytes for each in group), len(group), *key) for key, group in groups.items()]
        return tuple(sorted(holders, key=lambda holder: (-holder.bytes, holder.module, holder.line, holder.operator)))


@dataclass(frozen=True, slots=True)
class Peak:
    """The moment of a step at which the most bytes are alive.

    Attributes:
        bytes: all that is alive: the sum of `by_kind`, and what lives through the whole step.
        by_kind: the bytes that the step allocated and that are alive then.
        phase: the part of the step.
        operator: what runs then.
        module: the innermost module that runs then, or whose backward does; empty for the loss.
        line: where that was called.
        holders: what is alive then, the largest first.
    """

    bytes: int
    by_kind: Mapping[AllocationKind, int]
    phase: StepPhase
    operator: str
    module: str
    line: str
    holders: tuple[Holder, ...]

    @property
    def place(self) -> str:
        """Where it is, in words: "in the backward of model.layers.31.mlp, modeling_llama.py:164"."""
        where = f"in the {self.phase} of {self.module or 'the loss'}"
        return f"{where}, {self.line}" if self.line else where

    @classmethod
    def of(cls, step: StepAllocations, always: int) -> Peak:
        """Find the moment with the most bytes alive; `always` are the bytes that live through the whole step."""
        curves, total = step.curves()
        number = max(range(len(total)), key=total.__getitem__) + 1 if total else 0
        alive = [allocation for allocation in step.allocations if allocation.born <= number <= allocation.died]
        computed = [allocation for allocation in alive if allocation.kind is not AllocationKind.GATHERED]
        newest = max(computed, key=lambda allocation: allocation.born, default=None)
        return cls(
            bytes=always + (total[number - 1] if number else 0),
            by_kind={kind: curve[number - 1] for kind, curve in curves.items() if number and curve[number - 1]},
            phase=newest.phase if newest else StepPhase.FORWARD,
            operator=newest.operator if newest else "",
            module=newest.place.module if newest else "",
            line=newest.place.line if newest else "",
            holders=Holder.grouped(alive),
        )


@dataclass(frozen=True, slots=True)
class MemoryTimeline:
    """The bytes that a step allocated and that are alive, over its operators.

    `points` are operator numbers, `bytes` the bytes of each kind at these points, `modules` what ran there, empty for
    the loss. With more than 400 operators, each point is the highest of an interval. `backward_at` is the number of
    operators in the forward.
    """

    points: tuple[int, ...]
    bytes: Mapping[AllocationKind, tuple[int, ...]]
    backward_at: int
    modules: tuple[str, ...] = ()

    @classmethod
    def of(cls, step: StepAllocations) -> MemoryTimeline:
        """Return the bytes of each kind that are alive over the operators of a step."""
        curves, total = step.curves()
        length = -(-len(total) // _MOST_POINTS) or 1
        starts = range(0, len(total), length)
        points = [max(range(start, min(start + length, len(total))), key=total.__getitem__) for start in starts]
        shown = {kind: tuple(curve[point] for point in points) for kind, curve in curves.items()}
        computed = [each for each in step.allocations if each.kind is not AllocationKind.GATHERED]
        made = sorted((each.born, each.place.module) for each in computed)
        made_by_then = [bisect_right(made, point + 1, key=itemgetter(0)) for point in points]
        modules = tuple(made[count - 1][1] if count else "" for count in made_by_then)
        return cls(tuple(point + 1 for point in points), shown, step.backward_at, modules)

    def stacked(self, always: int) -> list[tuple[AllocationKind, list[int], list[int]]]:
        """Return the lower and upper edge of each kind that holds anything, stacked from `always` bytes upward."""
        low = [always] * len(self.points)
        areas = []
        for kind in AllocationKind:
            values = self.bytes.get(kind, ())
            if any(values):
                high = [edge + value for edge, value in zip(low, values, strict=True)]
                areas.append((kind, low, high))
                low = high
        return areas


@dataclass(frozen=True, slots=True)
class StepFigures:
    """The fields of an `Explanation`, which documents them."""

    model: str
    blocks: int
    checkpointed: int
    parameter_bytes: int
    buffer_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    kept_bytes: int
    peak: Peak
    holders: tuple[Holder, ...]
    timeline: MemoryTimeline
    forward_flops: int
    backward_flops: int
    drawn: int
    seconds: float
    input_bytes: int = 0
    workspace_bytes: int = 0
    frozen_bytes: int = 0
    adapted: bool = False
    saved: Mapping[str, int] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()

    @property
    def peak_bytes(self) -> int:
        """The most bytes alive at once, parameters and optimizer state included."""
        return self.peak.bytes

    @property
    def always_bytes(self) -> int:
        """The bytes that live through the whole step: parameters, buffers, optimizer, inputs and workspace."""
        held = self.parameter_bytes + self.buffer_bytes + self.optimizer_bytes
        return held + self.input_bytes + self.workspace_bytes
