"""Combine metered steps into ways to train in which blocks do different things."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ckpt_surgery.planning.choices import PlanChoice
from ckpt_surgery.planning.devices import Device
from ckpt_surgery.planning.metered_steps import StepCosts
from ckpt_surgery.planning.saving import BlockSaving, combined, keeps_products
from ckpt_surgery.planning.solver import Alternative, Solution, front


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
    """A change beside checkpointing: a step with it, without and with all blocks checkpointed, and its own seconds."""

    choice: PlanChoice
    bare: StepCosts
    full: StepCosts
    seconds: float


@dataclass(frozen=True, slots=True)
class HostSteps:
    """A step in which all checkpointed blocks move tensors to host memory.

    These are the blocks' inputs and, with `save_offload`, also what the blocks keep because of `save`.
    """

    step: StepCosts
    save_offload: bool


@dataclass(frozen=True)
class Mixtures:
    """The ways with one change, in which each block is plain, or checkpointed and keeps the results of some names.

    Nothing is done in `plain`, and all blocks are checkpointed in `wrapped`. `savings` are those of one name each, by
    block. `host` is None if everything stays on the device.
    """

    plain: StepCosts
    wrapped: StepCosts
    changed: ChangedSteps
    savings: Mapping[str, Sequence[BlockSaving]]
    host: HostSteps | None
    device: Device

    @cached_property
    def alternatives(self) -> dict[str, list[tuple[tuple[str, ...] | None, Alternative]]]:
        """The alternatives of each block in forward order: the names that it saves, None if plain, and the costs."""
        bare, full = self.changed.bare, self.changed.full
        ways: dict[str, list[tuple[tuple[str, ...] | None, Alternative]]] = {}
        for block, own in full.moments.blocks.items():
            plain = Alternative(bare.kept.get(block, 0), bare.moments.blocks.get(block, 0), 0.0)
            kept = full.kept.get(block, 0)
            if self.host is not None:
                own += self.host.step.moments.blocks.get(block, 0) - self.wrapped.moments.blocks.get(block, 0)
                kept = self.host.step.kept.get(block, 0)
            ways[block] = [(None, plain)]
            for saving in self._savings(block):
                costs = Alternative(kept + saving.kept, own + saving.own, self._seconds(block, saving))
                ways[block].append((saving.names, costs))
        return ways

    def solutions(self) -> list[Solution]:
        """Return the ways that no other beats in peak and time: estimates, without the time of the change itself."""
        alternatives = [[alternative for _, alternative in self.alternatives[block]] for block in self.alternatives]
        moments = self.changed.full.moments
        return front(alternatives, edges=moments.edges, loss=moments.loss)

    def row(self, solution: Solution) -> PlanRow:
        """Return a solution as a way to train."""
        ways = zip(self.alternatives, solution.taken, strict=True)
        names = {block: self.alternatives[block][at][0] for block, at in ways}
        checkpointed = {block: saved for block, saved in names.items() if saved is not None}
        choice = replace(self.changed.choice, checkpointed=checkpointed)
        if checkpointed and self.host is not None:
            save_offload = self.host.save_offload and any(checkpointed.values())
            choice = replace(choice, offload=True, save_offload=save_offload)
        seconds = solution.seconds + self.changed.seconds
        return PlanRow(choice, solution.kept + self._outside, solution.peak, seconds, measured=False)

    @cached_property
    def _outside(self) -> int:
        """The bytes kept outside of blocks."""
        full = self.changed.full
        return full.kept_bytes - sum(full.kept.get(block, 0) for block in full.moments.blocks)

    def _savings(self, block: str) -> list[BlockSaving]:
        single = self.savings.get(block, ())
        return combined(each for each in single if not (self.changed.choice.tiled and keeps_products(each.names[0])))

    def _seconds(self, block: str, saving: BlockSaving) -> float:
        """Return the extra time of a block if it is checkpointed."""
        recomputed = max(self.wrapped.recomputed.get(block, 0.0) - saving.seconds, 0.0)
        if self.host is None:
            return recomputed
        forward = self.plain.block_seconds.get(block, 0.0)
        transfer = (self.changed.full.kept.get(block, 0) + saving.moved) / self.device.link
        return recomputed + max(transfer - forward, 0.0) + max(transfer - 2 * forward - recomputed, 0.0)
