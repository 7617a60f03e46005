"""What one training step allocates and how much each of its operators does, as data; `step_meter` records it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate


class StepPhase(StrEnum):
    """The part of a step in which an operator ran."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"


class AllocationKind(StrEnum):
    """What a storage is to the step: what it is needed for, and until when."""

    KEPT = "kept for the backward"
    TEMPORARY = "temporary in the forward"
    RECOMPUTED = "recomputed"
    BACKWARD = "made in the backward"
    GRADIENT = "gradients of parameters"
    GATHERED = "gathered from ranks, or on the way to them"


@dataclass(frozen=True, slots=True)
class ModulePlace:
    """Where a model's code runs: the full name of the innermost module, and the line (`modeling_llama.py:181`).

    The line is the innermost one outside torch and this package. Either is empty if there is none.
    """

    module: str = ""
    line: str = ""


@dataclass(frozen=True, slots=True)
class Allocation:
    """A storage that a step allocated.

    Attributes:
        bytes: size of the whole storage.
        dtype: of the tensor it was made with, such as "bfloat16".
        shape: of that tensor.
        operator: what made it, such as "aten.mm".
        place: where the operator ran; in the backward, the place of its forward.
        phase: the part of the step that made it.
        kind: what it is needed for, which `phase` does not tell: the forward makes kept and temporary ones.
        keeper: the operator that saved it for the backward; empty if autograd did not save it.
        kept_at: where that operator ran.
        born: the number of the operator that made it; operators are numbered from 1.
        died: the number of the last operator after which it was still alive.
    """

    bytes: int
    dtype: str
    shape: tuple[int, ...]
    operator: str
    place: ModulePlace
    phase: StepPhase
    kind: AllocationKind
    keeper: str
    kept_at: ModulePlace
    born: int
    died: int


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """One operator: its module, the part of the step, its floating-point operations and the bytes it moves.

    `module` is empty in the backward, except in recomputes.
    """

    module: str
    phase: StepPhase
    flops: int
    bytes: int
    number: int = 0
    """Its number among all operators of the step, from 1."""


@dataclass(frozen=True, slots=True)
class StepAllocations:
    """The allocations of a step.

    `kept_bytes` are those alive when the backward begins, without the loss. `operators` counts all operators that ran,
    `backward_at` those in the forward. FLOPs are as torch counts them.
    """

    allocations: tuple[Allocation, ...]
    kept_bytes: int
    operators: int
    backward_at: int
    forward_flops: int
    backward_flops: int
    work: tuple[OperatorWork, ...]
    """Each operator that computes or moves anything, in execution order."""
    input_bytes: int = 0
    """The bytes of the step's inputs, which it did not allocate."""

    @property
    def alive_bytes(self) -> list[int]:
        """The bytes that the step allocated and that are alive after each operator."""
        return self.curves()[1]

    def curves(self) -> tuple[dict[AllocationKind, list[int]], list[int]]:
        """Return the bytes of each kind, and of all kinds, that are alive after each operator."""
        changes = {kind: [0] * (self.operators + 1) for kind in AllocationKind}
        for allocation in self.allocations:
            changes[allocation.kind][allocation.born - 1] += allocation.bytes
            changes[allocation.kind][allocation.died] -= allocation.bytes
        curves = {kind: list(accumulate(change))[: self.operators] for kind, change in changes.items()}
        return curves, [sum(values) for values in zip(*curves.values(), strict=True)]

    def is_same_step(self, other: StepAllocations) -> bool:
        """Tell whether both records have the same entries, in whatever order, and the same totals."""
        totals = [replace(each, allocations=(), work=()) for each in (self, other)]
        same_work = Counter(self.work) == Counter(other.work)
        return totals[0] == totals[1] and same_work and Counter(self.allocations) == Counter(other.allocations)
