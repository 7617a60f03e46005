"""The steps of one model that were metered for a plan, and what they say of others."""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from torch import nn

from ckpt_surgery.distributed.fused_head import FusedLoss
from ckpt_surgery.distributed.mlps import mlps_of
from ckpt_surgery.errors import DoesNotFitError, PlanningError, SurgeryError, SurgeryWarning
from ckpt_surgery.planning.allocations import Kind, StepAllocations
from ckpt_surgery.planning.choices import PlanChoice
from ckpt_surgery.planning.devices import DEVICES
from ckpt_surgery.planning.explain import explanation_of, on_host_without_data
from ckpt_surgery.planning.explanation import Explanation
from ckpt_surgery.planning.mixtures import ChangedSteps, MeteredStep, Mixtures, PlanRow
from ckpt_surgery.planning.moments import moments_of
from ckpt_surgery.planning.phases import StepPhase
from ckpt_surgery.planning.roofline import seconds_of
from ckpt_surgery.planning.saving import Saving, combined, names_for
from ckpt_surgery.planning.sharding import sharded
from ckpt_surgery.planning.solver import unbeaten
from ckpt_surgery.planning.training import TrainingSetup
from ckpt_surgery.runtime.discovery import find_blocks, nearest
from ckpt_surgery.runtime.wrap import wrap_blocks
from ckpt_surgery.text import size


class BudgetPlanner:
    """Chooses for one model that holds no data and has no surgery; `step` meters a step of it as it stands.

    `unavailable` says of each change that cannot be made to this model why.
    """

    def __init__(
        self, model: nn.Module, step: Callable[[], tuple[StepAllocations, int]], memory: int, training: TrainingSetup
    ) -> None:
        self.model, self.memory = model, memory
        self.device = training.device or DEVICES["h100"]
        self.unavailable: dict[str, str] = {}
        self._step, self._training = step, training
        self._known: dict[Hashable, MeteredStep] = {}
        with wrap_blocks(model, self_check="never") as surgery:
            self.stacks = {stack.name: stack.blocks for stack in surgery.stacks if stack.wanted}
        self._names = frozenset(block.name for blocks in self.stacks.values() for block in blocks)
        self._block_of = cache(partial(nearest, names=self._names))
        self.plain = self._metered(PlanChoice())
        self.all_first = {name: len(blocks) for name, blocks in self.stacks.items()}

    @property
    def step_seconds(self) -> float:
        """The least time of a step in which nothing is changed."""
        return self.plain.seconds

    def nothing(self) -> tuple[PlanRow, Explanation]:
        """The row of a step in which nothing is changed."""
        explained = self.plain.explained
        none = PlanChoice(dict.fromkeys(self.stacks, 0))
        return PlanRow(none, explained.kept_bytes, explained.peak_bytes, 0.0, True), explained

    def ways(self, *, offload: bool, changes: bool, save: bool = True, own_loss: bool = True) -> list[PlanRow]:
        """The ways that no other beats, from the fastest to the one with the lowest peak; all are estimates.

        With `changes`, MLPs may be tiled and, with `own_loss`, the loss be fused. Each of these is metered with
        all blocks checkpointed, tiled MLPs without as well, and so is each name of `save`; what single blocks keep,
        what names keep, and what offload moves, adds up.
        """
        whole = PlanChoice(self.all_first)
        wrapped = self._metered(whole)
        moved = self._metered(replace(whole, offload=True)) if offload else None
        savings = combined(self._savings(wrapped)) if save else [Saving()]
        names = {stack: [block.name for block in blocks] for stack, blocks in self.stacks.items()}
        rows: list[PlanRow] = []
        for choice in self._changes(own_loss) if changes else [PlanChoice()]:
            changed = self._changed(choice, wrapped)
            if changed is None:
                continue
            for saving in savings:
                if choice.tiled and saving.keeps_products:
                    continue
                for step in (None, moved) if moved else (None,):
                    mixtures = Mixtures(names, self.plain, wrapped, changed, saving, step, self.device)
                    rows += mixtures.rows()
        nothing, _ = self.nothing()
        rows = [nothing if row.choice == nothing.choice else row for row in rows]
        return unbeaten(rows, lambda row: (row.extra_seconds, row.peak_bytes))

    def fastest(self, ways: Sequence[PlanRow]) -> tuple[PlanRow, Explanation]:
        """The fastest way whose step fits, metered. Raises DoesNotFitError.

        What an estimate was off by corrects those of the ways that differ in the number of blocks alone.
        """
        told: dict[int, MeteredStep | None] = {}
        off: dict[Hashable, int] = {}

        def expected(at: int) -> int:
            return ways[at].peak_bytes + off.get(ways[at].choice.beside_numbers, 0)

        def fits(at: int) -> bool:
            if at not in told:
                told[at] = metered = self._of_way(ways[at].choice)
                if metered is not None:
                    off[ways[at].choice.beside_numbers] = metered.explained.peak_bytes - ways[at].peak_bytes
            metered = told[at]
            return metered is not None and metered.explained.peak_bytes <= self.memory

        best = len(ways)
        while True:
            untried = [at for at in range(best) if at not in told]
            likely = next((at for at in untried if expected(at) <= self.memory), None)
            if likely is None and best - 1 in untried:  # its estimate alone says that it does not fit
                likely = best - 1
            if likely is None:
                break
            best = likely if fits(likely) else best
        known = {at: metered for at, metered in told.items() if metered is not None}
        if best not in known:
            needed = min([self.plain.explained.peak_bytes, *(each.explained.peak_bytes for each in known.values())])
            raise DoesNotFitError(
                f"{type(self.model).__name__} does not fit into {size(self.memory)}: at the least a step needs "
                f"{size(needed)}, {size(needed - self.memory)} more; take fewer tokens, adapters, or an optimizer "
                "with a smaller state"
            )
        return self._measured(ways[best], known[best]), known[best].explained

    def _of_way(self, choice: PlanChoice) -> MeteredStep | None:
        """A step with a choice; None where its names of `save` match nothing in so few blocks."""
        return self._tried(choice) if choice.save else self._metered(choice)

    def _measured(self, row: PlanRow, metered: MeteredStep) -> PlanRow:
        """A way with what was metered; waits for the host are not, so that the time with offload stays an estimate."""
        told = metered.explained
        extra = row.extra_seconds if row.choice.offload else max(metered.seconds - self.plain.seconds, 0.0)
        return replace(row, kept_bytes=told.kept_bytes, peak_bytes=told.peak_bytes, extra_seconds=extra, measured=True)

    def _savings(self, wrapped: MeteredStep) -> list[Saving]:
        """What each name of `save` that the blocks have operators for changes, with all of them checkpointed."""
        savings = []
        for name in names_for(self.plain.operators):
            saved = self._tried(PlanChoice(self.all_first, save=(name,)))
            if saved is not None:
                kept = {block: saved.kept.get(block, 0) - wrapped.kept.get(block, 0) for block in self._names}
                spared = {
                    block: wrapped.recomputed.get(block, 0.0) - saved.recomputed.get(block, 0.0)
                    for block in self._names
                }
                own = {
                    block: held - wrapped.moments.blocks.get(block, 0) for block, held in saved.moments.blocks.items()
                }
                savings.append(Saving((name,), kept, spared, own))
        return savings

    def _changed(self, change: PlanChoice, wrapped: MeteredStep) -> ChangedSteps | None:
        """A change, metered; None where it cannot be made."""
        if change == PlanChoice():
            return ChangedSteps(change, self.plain, wrapped, 0.0)
        full = self._tried(replace(change, first=self.all_first))
        alone = PlanChoice(tiled=change.tiled, shard_size=change.shard_size)
        bare = self._tried(alone) if change.tiled else self.plain
        return (
            None if full is None or bare is None else ChangedSteps(change, bare, full, full.seconds - wrapped.seconds)
        )

    def _changes(self, own_loss: bool) -> list[PlanChoice]:
        """Every combination of changes beside checkpointing."""
        blocks = [block.module for blocks in self.stacks.values() for block in blocks]
        mlps = [mlp for mlp in mlps_of(self.model, blocks) if mlp.reason is None]
        shard_size = max((mlp.width for mlp in mlps), default=0)
        tiled = PlanChoice(tiled=tuple(mlp.name for mlp in mlps), shard_size=shard_size)
        ways = [PlanChoice(), *([tiled] if mlps else [])]
        return [*ways, *([replace(way, fused_loss=True) for way in ways] if own_loss else [])]

    def _tried(self, choice: PlanChoice) -> MeteredStep | None:
        """The step with this choice; None, with its reason, where it cannot be made."""
        names = [
            *(["tile_mlp"] if choice.tiled else []),
            *(["fuse_loss"] if choice.fused_loss else []),
            *choice.save,
        ]
        if any(name in self.unavailable for name in names):
            return None
        try:
            return self._metered(choice)
        except (SurgeryError, PlanningError) as error:
            if choice.first == self.all_first or not choice.save:  # else it is so of these blocks alone
                own = isinstance(error.__cause__, SurgeryError)
                self.unavailable[names[-1]] = str(error.__cause__ if own else error)
            return None

    def _metered(self, choice: PlanChoice) -> MeteredStep:
        """The step with this choice, which is run once."""
        key = tuple(sorted(choice.first.items())) if choice.checkpoints else (), choice.beside_numbers
        if key not in self._known:
            self._known[key] = self._run(choice)
        return self._known[key]

    def _run(self, choice: PlanChoice) -> MeteredStep:
        with choice.apply(self.model, self_check="never") as applied, warnings.catch_warnings():
            warnings.simplefilter("ignore", SurgeryWarning)  # what it would say is asked for below
            on_host_without_data(self.model)
            step, drawn = self._step()
            for part in applied.parts:
                if isinstance(part, FusedLoss):
                    part.check()
            explained = explanation_of(self.model, step, drawn, self._training)
        kept: Counter[str] = Counter()
        handed: Counter[tuple[Any, ...]] = Counter()
        made: set[tuple[Any, ...]] = set()
        for allocation in step.allocations:
            if allocation.kind is Kind.KEPT:
                block, place = self._block_of(allocation.place.module), allocation.place
                kept[block] += allocation.bytes
                key = (block, place.module, allocation.operator, place.line, allocation.shape)
                made.add(key)
                if self._block_of(allocation.kept_at.module) not in (block, ""):
                    handed[key] += allocation.bytes
        seconds: dict[StepPhase, defaultdict[str, float]] = {phase: defaultdict(float) for phase in StepPhase}
        for each in step.work:
            seconds[each.phase][self._block_of(each.module)] += seconds_of([each], self.device)
        own = sharded(step, self.model, [block.name for block in find_blocks(self.model)], self._training)
        return MeteredStep(
            explained,
            kept,
            seconds_of(step.work, self.device),
            seconds[StepPhase.FORWARD],
            seconds[StepPhase.RECOMPUTE],
            frozenset(each.operator for each in step.allocations if self._block_of(each.place.module)),
            moments_of(own, explained.always_bytes, kept, self._block_of),
            handed,
            frozenset(made),
        )
