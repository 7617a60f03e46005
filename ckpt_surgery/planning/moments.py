"""The bytes alive at the moments of a step that may be its peak, from which the peak of a mixture of steps follows.

A block's backward frees what the block kept, and begins while all blocks before it still keep theirs. Anything else
that is alive then depends on this block alone: it is read from a step in which the block does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ckpt_surgery.planning.allocations import AllocationKind, StepAllocations
from ckpt_surgery.planning.figures import alive_bytes
from ckpt_surgery.planning.phases import StepPhase


@dataclass(frozen=True, slots=True)
class StepMoments:
    """The most bytes alive at some moments, including what lives through the whole step.

    Attributes:
        edges: before the first block's forward, and after the last backward of a block.
        loss: between the blocks' forwards and backwards, without what blocks keep.
        blocks: in the backward of each block, without what earlier blocks keep; in the order of the forward.
    """

    edges: int
    loss: int
    blocks: Mapping[str, int]


def moments_of(
    step: StepAllocations, always: int, kept: Mapping[str, int], block_of: Callable[[str], str]
) -> StepMoments:
    """Read the moments of a step; `always` are the bytes that live through it, `kept` those that each block keeps.

    `block_of` returns the block that a module is in, an empty string for none.
    """
    alive = [always + held for held in alive_bytes(step)]
    forward: dict[str, int] = {}
    backward: dict[str, list[int]] = {}
    last_forward = 0
    for allocation in step.allocations:
        block = "" if allocation.kind is AllocationKind.GATHERED else block_of(allocation.place.module)
        if not block:
            continue
        if allocation.phase is StepPhase.FORWARD:
            forward.setdefault(block, allocation.born)
            last_forward = max(last_forward, allocation.born)
        else:
            backward.setdefault(block, []).append(allocation.born)
    births = [born for some in backward.values() for born in some]
    first_backward, last_backward = min(births, default=step.backward_at + 1), max(births, default=step.operators)
    blocks, before = {}, 0
    for block in sorted(forward, key=forward.__getitem__):
        blocks[block] = _most(alive[born - 1] for born in backward.get(block, ())) - before
        before += kept.get(block, 0)
    first_forward = min(forward.values(), default=1)
    return StepMoments(
        edges=_most((*alive[: first_forward - 1], *alive[last_backward:])),
        loss=_most(alive[last_forward : first_backward - 1]) - before,
        blocks=blocks,
    )


def _most(values: Iterable[int]) -> int:
    return max(values, default=0)
