"""Combine metered steps into ways to train in which different blocks do different things."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product

from ckpt_surgery.planning.choices import PlanChoice
from ckpt_surgery.planning.devices import Device
from ckpt_surgery.planning.metered_steps import StepCosts
from ckpt_surgery.planning.solver import Alternative, Solution, front
from ckpt_surgery.runtime.selective.policies import ATTENTION, VOCABULARY, in_words

_MATMUL = "matmul"
_OFFERED: tuple[tuple[str, ...], ...] = ((ATTENTION,), (f"{_MATMUL}:2", _MATMUL), ("conv",), ("norm",))
"""Names of `save` to try, at most one of each group. Routers and random results are kept for other reasons."""
_SOFTMAX = frozenset({"aten._softmax", "aten._safe_softmax"})


@dataclass(frozen=True, slots=True)
class BlockSaving:
    """The effect of keeping results in one checkpointed block, by `names` of `save`.

    Attributes:
        kept: extra bytes that the block keeps on the device.
        own: extra bytes alive in its backward, apart from what the blocks before it keep.
        seconds: the time that its recompute saves.
        moved: extra bytes that it keeps in host memory.
    """

    names: tuple[str, ...] = ()
    kept: int = 0
    own: int = 0
    seconds: float = 0.0
    moved: int = 0

    @classmethod
    def combined(cls, single: Iterable[BlockSaving]) -> list[BlockSaving]:
        """List every combination of savings of one name each, the empty one first."""
        by_names = {saving.names: saving for saving in single}
        groups = [[cls(), *(by_names[(name,)] for name in group if (name,) in by_names)] for group in _OFFERED]
        return [
            cls(
                names=tuple(name for each in some for name in each.names),
                kept=sum(each.kept for each in some),
                own=sum(each.own for each in some),
                seconds=sum(each.seconds for each in some),
                moved=sum(each.moved for each in some),
            )
            for some in product(*groups)
        ]


def names_for(operators: Iterable[str]) -> list[str]:
    """List the names that stand for any of these operators, such as "aten.mm"."""
    run, names = frozenset(operators), []
    for name in chain(*_OFFERED):
        offered = set(map(in_words, VOCABULARY[name.partition(":")[0]])) | (_SOFTMAX if name == ATTENTION else set())
        names += [name] if offered & run else []
    return names


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One way to train, and its costs.

    `peak_bytes` was metered on shapes if `measured`, else it is an estimate from metered steps. `extra_seconds` are
    those of one step on the device.
    """

    choice: PlanChoice
    kept_bytes: int
    peak_bytes: int
    extra_seconds: float
    measured: bool


@dataclass(frozen=True, slots=True)
class ChangedSteps:
    """A change beside checkpointing: its steps with no block checkpointed and with all, and the seconds it adds."""

    choice: PlanChoice
    bare: StepCosts
    full: StepCosts
    seconds: float


@dataclass(frozen=True)
class Mixtures:
    """The ways with one change, in which each block is plain, or checkpointed and keeps the results of some names.

    In `plain` nothing is done, and in `wrapped` all blocks are checkpointed. `savings` are those of one name each, by
    block. In `host` all checkpointed blocks move their inputs to host memory, and with `save_offload` also what they
    keep because of `save`; it is None if everything stays on the device.
    """

    plain: StepCosts
    wrapped: StepCosts
    changed: ChangedSteps
    savings: Mapping[str, Sequence[BlockSaving]]
    device: Device
    host: StepCosts | None = None
    save_offload: bool = False

    @cached_property
    def alternatives(self) -> dict[str, list[tuple[tuple[str, ...] | None, Alternative]]]:
        """The alternatives of each block in forward order: the names that it saves, None if plain, and the costs."""
        bare, full = self.changed.bare, self.changed.full
        ways: dict[str, list[tuple[tuple[str, ...] | None, Alternative]]] = {}
        for block, own in full.moments.blocks.items():
            plain = Alternative(bare.kept.get(block, 0), bare.moments.blocks.get(block, 0), 0.0)
            kept = full.kept.get(block, 0)
            if self.host is not None:
                own += self.host.moments.blocks.get(block, 0) - self.wrapped.moments.blocks.get(block, 0)
                kept = self.host.kept.get(block, 0)
            ways[block] = [(None, plain)]
            single = self.savings.get(block, ())
            if self.changed.choice.tiled:  # a tiled MLP computes products in shards, which are not kept
                single = [each for each in single if not each.names[0].startswith(_MATMUL)]
            for saving in BlockSaving.combined(single):
                costs = Alternative(kept + saving.kept, own + saving.own, self._seconds(block, saving))
                ways[block].append((saving.names, costs))
        return ways

    def solutions(self) -> list[Solution]:
        """Return estimates of the ways that no other beats in peak and time, without the time of the change itself."""
        alternatives = [[alternative for _, alternative in self.alternatives[block]] for block in self.alternatives]
        moments = self.changed.full.moments
        return front(alternatives, edges=moments.edges, loss=moments.loss)

    def row(self, solution: Solution) -> PlanRow:
        """Return a solution as a way to train."""
        ways = zip(self.alternatives, solution.taken, strict=True)
        names = {block: self.alternatives[block][index][0] for block, index in ways}
        checkpointed = {block: saved for block, saved in names.items() if saved is not None}
        choice = replace(self.changed.choice, checkpointed=checkpointed)
        if checkpointed and self.host is not None:
            save_offload = self.save_offload and any(checkpointed.values())
            choice = replace(choice, offload=True, save_offload=save_offload)
        seconds = solution.seconds + self.changed.seconds
        full = self.changed.full
        outside = full.kept_bytes - sum(full.kept.get(block, 0) for block in full.moments.blocks)
        return PlanRow(choice, solution.kept + outside, solution.peak, seconds, measured=False)

    def _seconds(self, block: str, saving: BlockSaving) -> float:
        """Return the extra time of a block if it is checkpointed."""
        recomputed = max(self.wrapped.recomputed.get(block, 0.0) - saving.seconds, 0.0)
        if self.host is None:
            return recomputed
        forward = self.plain.block_seconds.get(block, 0.0)
        transfer = (self.changed.full.kept.get(block, 0) + saving.moved) / self.device.link
        return recomputed + max(transfer - forward, 0.0) + max(transfer - 2 * forward - recomputed, 0.0)
