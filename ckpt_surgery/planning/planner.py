"""Plan for one model: meter a few steps, and estimate others from them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from ckpt_surgery.errors import DoesNotFitError, PlanningError, SurgeryError
from ckpt_surgery.long_sequences.mlps import mlps_of
from ckpt_surgery.planning.allocations import StepAllocations
from ckpt_surgery.planning.choices import PlanChoice
from ckpt_surgery.planning.devices import DEVICES
from ckpt_surgery.planning.explanation import Explanation
from ckpt_surgery.planning.metered_steps import MeteredStep, MeteredSteps, StepCosts
from ckpt_surgery.planning.mixtures import BlockSaving, ChangedSteps, Mixtures, PlanRow, names_for
from ckpt_surgery.planning.solver import unbeaten
from ckpt_surgery.planning.training import TrainingSetup
from ckpt_surgery.runtime.surgery.wrap import wrap_blocks
from ckpt_surgery.text import size


@dataclass(frozen=True, slots=True)
class PlanFront:
    """The chosen way, the explanation of its step, and the ways that no other beats, the fastest first."""

    chosen: PlanRow
    explanation: Explanation
    rows: tuple[PlanRow, ...]


class BudgetPlanner:
    """A planner for one model without data and surgery; `step` meters a step of it unchanged.

    `unavailable` gives the reason for each change that cannot be made to this model.
    """

    def __init__(
        self, model: nn.Module, step: Callable[[], tuple[StepAllocations, int]], memory: int, training: TrainingSetup
    ) -> None:
        self.model, self.memory = model, memory
        self.device = training.device or DEVICES["h100"]
        self.unavailable: dict[str, str] = {}
        self.stacks = stacks_of(model)
        self._names = frozenset(name for names in self.stacks.values() for name in names)
        self._nothing = PlanChoice(self.stacks)
        self._all = replace(self._nothing, checkpointed=dict.fromkeys(sorted(self._names), ()))
        self._steps = MeteredSteps(model, step, self._nothing, training, self.device)
        self.plain = self._steps.plain

    @property
    def step_seconds(self) -> float:
        """The least time of a step in which nothing is changed."""
        return self.plain.costs.seconds

    def nothing(self) -> PlanFront:
        """Return the step in which nothing is changed, alone."""
        explained = self.plain.explained
        row = PlanRow(self._nothing, explained.kept_bytes, explained.peak_bytes, 0.0, True)
        return PlanFront(row, explained, (row,))

    def ways(self, *, offload: bool, changes: bool, save: bool = True, own_loss: bool = True) -> list[PlanRow]:
        """Return the ways that no other beats, from the fastest to the one with the lowest peak; all are estimates.

        With `changes`, MLPs may be tiled and, with `own_loss`, the loss fused. Each of these is metered with all
        blocks checkpointed, tiled MLPs also with none, and so is each name of `save`. Estimates add up what individual
        blocks keep, what names keep and what offload moves.
        """
        wrapped = self._steps.metered(self._all).costs
        offloaded = replace(self._all, offload=True)
        moved = self._steps.metered(offloaded).costs if offload else None
        self._steps.use_repeats(self._nothing, self._all, *([offloaded] if offload else []))
        savings = self._savings(wrapped) if save else {}
        offloads: list[tuple[Mapping[str, Sequence[BlockSaving]], StepCosts | None, bool]] = [(savings, None, False)]
        if moved is not None:
            offloads.append((savings, moved, False))
            if any(savings.values()):
                offloads.append((self._moved_savings(savings, moved), moved, True))
        mixtures = [
            Mixtures(self.plain.costs, wrapped, changed, single, self.device, host, save_offload)
            for choice in (self._changes(own_loss) if changes else [self._nothing])
            for changed in self._metered_change(choice, wrapped)
            for single, host, save_offload in offloads
        ]
        ways = [(mixture, solution) for mixture in mixtures for solution in mixture.solutions()]
        best = unbeaten(ways, lambda way: (way[1].seconds + way[0].changed.seconds, way[1].peak))
        nothing = self.nothing().chosen
        rows = [mixture.row(solution) for mixture, solution in best]
        return [nothing if row.choice == nothing.choice else row for row in rows]

    def everything(self, *, offload: bool, changes: bool, own_loss: bool = True) -> PlanChoice:
        """Return all blocks checkpointed, with each change that can be made: call this after `ways`.

        It is for the model with a lever, whose step is not known: `ways` leave out what saves nothing without one.
        """
        way = self._changes(own_loss)[-1] if changes else self._nothing
        return replace(
            way,
            checkpointed=self._all.checkpointed,
            offload=offload,
            fused_loss=way.fused_loss and "fuse_loss" not in self.unavailable,
            tiled=() if "tile_mlp" in self.unavailable else way.tiled,
        )

    def fastest(self, ways: Sequence[PlanRow]) -> PlanFront:
        """Return the fastest way whose step fits, metered, among all that no other beats. Raises DoesNotFitError.

        The error of each estimate corrects those of ways that differ only in what individual blocks do.
        """
        tried: dict[int, MeteredStep] = {}
        errors: dict[Hashable, int] = {}

        def expected(index: int) -> int:
            return ways[index].peak_bytes + errors.get(ways[index].choice.beside_blocks, 0)

        def fits(index: int) -> bool:
            tried[index] = metered = self._steps.metered(ways[index].choice)
            errors[ways[index].choice.beside_blocks] = metered.explained.peak_bytes - ways[index].peak_bytes
            return metered.explained.peak_bytes <= self.memory

        def corrected(index: int, row: PlanRow) -> PlanRow:
            if index in tried:
                return self._measured(row, tried[index])
            return row if row.measured else replace(row, peak_bytes=expected(index))

        best = len(ways)
        while True:
            untried = [index for index in range(best) if index not in tried]
            likely = next((index for index in untried if expected(index) <= self.memory), None)
            if likely is None and best - 1 in untried:  # only an estimate says that it does not fit
                likely = best - 1
            if likely is None:
                break
            best = likely if fits(likely) else best
        if best not in tried:
            raise DoesNotFitError(f"{type(self.model).__name__} does not fit into {size(self.memory)}")
        rows = [corrected(index, row) for index, row in enumerate(ways)]
        chosen = rows.pop(best)
        peak, extra = chosen.peak_bytes, chosen.extra_seconds
        others = [row for row in rows if (row.peak_bytes - peak) * (row.extra_seconds - extra) < 0]
        front = unbeaten([chosen, *others], lambda row: (row.extra_seconds, row.peak_bytes))
        return PlanFront(chosen, tried[best].explained, tuple(front))

    def smallest(self, ways: Sequence[PlanRow]) -> PlanFront:
        """Return the way with the lowest peak, metered and alone."""
        metered = self._steps.metered(ways[-1].choice)
        row = self._measured(ways[-1], metered)
        return PlanFront(row, metered.explained, (row,))

    def _measured(self, row: PlanRow, metered: MeteredStep) -> PlanRow:
        """Return a way with its metered figures. With offload its time stays an estimate: waits are not metered."""
        explained = metered.explained
        extra = row.extra_seconds if row.choice.offload else max(metered.costs.seconds - self.plain.costs.seconds, 0.0)
        kept, peak = explained.kept_bytes, explained.peak_bytes
        return replace(row, kept_bytes=kept, peak_bytes=peak, extra_seconds=extra, measured=True)

    def _savings(self, wrapped: StepCosts) -> dict[str, list[BlockSaving]]:
        """Meter what each name of `save` changes in each block that keeps anything, with all blocks checkpointed."""
        savings: dict[str, list[BlockSaving]] = {block: [] for block in self._names}
        for name in names_for(self.plain.costs.operators):
            saved = self._costs_if_possible(self._all_saving(name))
            if saved is None:
                continue
            for block, single in savings.items():
                kept = saved.kept.get(block, 0) - wrapped.kept.get(block, 0)
                own = saved.moments.blocks.get(block, 0) - wrapped.moments.blocks.get(block, 0)
                spared = wrapped.recomputed.get(block, 0.0) - saved.recomputed.get(block, 0.0)
                if kept > 0:
                    single.append(BlockSaving((name,), kept, own, spared))
        return savings

    def _moved_savings(
        self, savings: Mapping[str, Sequence[BlockSaving]], moved: StepCosts
    ) -> dict[str, list[BlockSaving]]:
        """Meter them with kept results in host memory; `moved` is the step in which only the inputs go there."""
        steps = {
            name: self._steps.estimated(replace(self._all_saving(name), offload=True, save_offload=True))
            for name in dict.fromkeys(name for single in savings.values() for each in single for name in each.names)
        }

        def on_host(block: str, saving: BlockSaving) -> BlockSaving:
            step = steps[saving.names[0]]
            return replace(
                saving,
                kept=step.kept.get(block, 0) - moved.kept.get(block, 0),
                own=step.moments.blocks.get(block, 0) - moved.moments.blocks.get(block, 0),
                moved=saving.kept,
            )

        return {block: [on_host(block, saving) for saving in single] for block, single in savings.items()}

    def _all_saving(self, name: str) -> PlanChoice:
        """Return the choice that checkpoints all blocks and keeps what this name stands for."""
        return replace(self._all, checkpointed=dict.fromkeys(self._all.checkpointed, (name,)))

    def _metered_change(self, change: PlanChoice, wrapped: StepCosts) -> list[ChangedSteps]:
        """Meter a change; return an empty list if it cannot be made."""
        if not change.is_needed:
            return [ChangedSteps(change, self.plain.costs, wrapped, 0.0)]
        full = self._costs_if_possible(replace(change, checkpointed=self._all.checkpointed))
        bare = self._costs_if_possible(replace(change, fused_loss=False)) if change.tiled else self.plain.costs
        if full is None or bare is None:
            return []
        return [ChangedSteps(change, bare, full, full.seconds - wrapped.seconds)]

    def _changes(self, own_loss: bool) -> list[PlanChoice]:
        """List every combination of changes beside checkpointing."""
        tiling = tiling_of(self.model, self._names)
        ways = [self._nothing, *([replace(self._nothing, **tiling)] if tiling else [])]
        return [*ways, *([replace(way, fused_loss=True) for way in ways] if own_loss else [])]

    def _costs_if_possible(self, choice: PlanChoice) -> StepCosts | None:
        """Return the costs of this choice; None if it cannot be made, with the reason in `unavailable`."""
        names = [
            *(["tile_mlp"] if choice.tiled else []),
            *(["fuse_loss"] if choice.fused_loss else []),
            *(name for names in choice.saved for name in names),
        ]
        if any(name in self.unavailable for name in names):
            return None
        try:
            return self._steps.estimated(choice)
        except (SurgeryError, PlanningError) as error:
            is_cause = isinstance(error.__cause__, SurgeryError)
            self.unavailable[names[-1]] = str(error.__cause__ if is_cause else error)
            return None


def stacks_of(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """List the names of the blocks in each stack that `wrap_blocks` takes. Raises SurgeryError if there is none."""
    with wrap_blocks(model, self_check="never") as surgery:
        return {stack.name: tuple(block.name for block in stack.blocks) for stack in surgery.stacks if stack.wanted}


def tiling_of(model: nn.Module, blocks: Iterable[str]) -> dict[str, Any]:
    """Return the fields of a choice that tiles all MLPs in these blocks that can be; empty if none can."""
    mlps = [mlp for mlp in mlps_of(model, map(model.get_submodule, blocks)) if mlp.reason is None]
    return {"tiled": tuple(mlp.name for mlp in mlps), "shard_size": max(mlp.width for mlp in mlps)} if mlps else {}
