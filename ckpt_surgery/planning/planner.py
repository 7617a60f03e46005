"""The steps of one model that were metered for a plan, and what they say of others."""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from torch import nn

from ckpt_surgery.distributed.fused_head import FusedLoss
from ckpt_surgery.distributed.mlps import mlps_of
from ckpt_surgery.errors import DoesNotFitError, PlanningError, SurgeryError, SurgeryWarning
from ckpt_surgery.planning.allocations import Kind, StepAllocations
from ckpt_surgery.planning.choices import PlanChoice
from ckpt_surgery.planning.devices import DEVICES
from ckpt_surgery.planning.explain import explanation_of, on_host_without_data
from ckpt_surgery.planning.explanation import Explanation
from ckpt_surgery.planning.roofline import seconds_of
from ckpt_surgery.planning.solver import Alternative, Solution, front, unbeaten
from ckpt_surgery.planning.training import TrainingSetup
from ckpt_surgery.runtime.discovery import Block, nearest
from ckpt_surgery.runtime.wrap import wrap_blocks
from ckpt_surgery.text import size


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One way to train, and what that costs.

    `peak_bytes` is what was measured on shapes where `measured` is set, else an estimate from steps that were.
    `extra_seconds` are those of one step on the device.
    """

    choice: PlanChoice
    kept_bytes: int
    peak_bytes: int
    extra_seconds: float
    measured: bool


@dataclass(frozen=True, slots=True)
class _Metered:
    """A step with a choice: what is known of it, what each block keeps, and its least seconds, all and by block."""

    explained: Explanation
    kept: Mapping[str, int]
    seconds: float
    block_seconds: Mapping[str, float]

    @property
    def above(self) -> int:
        """What the peak is above what is kept."""
        return self.explained.peak_bytes - self.explained.kept_bytes


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
        with wrap_blocks(model, self_check="never") as surgery:
            self.stacks = {stack.name: stack.blocks for stack in surgery.stacks if stack.wanted}
        self._names = frozenset(block.name for blocks in self.stacks.values() for block in blocks)
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

    def ways(self, *, offload: bool, changes: bool, own_loss: bool = True) -> list[PlanRow]:
        """The ways that no other beats, from the fastest to the one with the lowest peak; all are estimates.

        With `changes`, MLPs may be tiled and, with `own_loss`, the loss be fused. Each of these is metered with
        all blocks checkpointed, tiled MLPs without as well; what single blocks keep, and what offload moves, adds up.
        """
        whole = PlanChoice(self.all_first)
        wrapped = self._metered(whole)
        moved = self._metered(replace(whole, offload=True)) if offload else None
        rows: list[PlanRow] = []
        for change in self._changes(own_loss) if changes else [PlanChoice()]:
            full = wrapped if change == PlanChoice() else self._tried(replace(change, first=self.all_first))
            bare = (
                self._tried(PlanChoice(tiled=change.tiled, shard_size=change.shard_size))
                if change.tiled
                else self.plain
            )
            if full is None or bare is None:
                continue
            spent = full.seconds - wrapped.seconds
            rows += self._rows(change, bare, full, None, spent)
            if moved is not None:
                rows += self._rows(change, bare, full, moved, spent)
        nothing, _ = self.nothing()
        rows = [nothing if row.choice == nothing.choice else row for row in rows]
        return unbeaten(rows, lambda row: (row.extra_seconds, row.peak_bytes))

    def fastest(self, ways: Sequence[PlanRow]) -> tuple[PlanRow, Explanation]:
        """The fastest way whose step fits, metered. Raises DoesNotFitError."""
        place = next((at for at, row in enumerate(ways) if row.peak_bytes <= self.memory), len(ways) - 1)
        fits: dict[int, Explanation] = {}
        least: Explanation | None = None
        while 0 <= place < len(ways) and place not in fits:
            explained = self._metered(ways[place].choice).explained
            least = explained if least is None or explained.peak_bytes < least.peak_bytes else least
            if explained.peak_bytes <= self.memory:
                fits[place] = explained
                place -= 1
            elif fits:
                break
            else:
                place += 1
        if not fits:
            needed = least.peak_bytes if least else self.plain.explained.peak_bytes
            raise DoesNotFitError(
                f"{type(self.model).__name__} does not fit into {size(self.memory)}: at the least a step needs "
                f"{size(needed)}, {size(needed - self.memory)} more; take fewer tokens, adapters, or an optimizer "
                "with a smaller state"
            )
        best = min(fits)
        told = fits[best]
        return replace(ways[best], kept_bytes=told.kept_bytes, peak_bytes=told.peak_bytes, measured=True), told

    def _changes(self, own_loss: bool) -> list[PlanChoice]:
        """Every combination of changes beside checkpointing."""
        blocks = [block.module for blocks in self.stacks.values() for block in blocks]
        mlps = [mlp for mlp in mlps_of(self.model, blocks) if mlp.reason is None]
        shard_size = max((mlp.width for mlp in mlps), default=0)
        tiled = PlanChoice(tiled=tuple(mlp.name for mlp in mlps), shard_size=shard_size)
        ways = [PlanChoice(), *([tiled] if mlps else [])]
        return [*ways, *([replace(way, fused_loss=True) for way in ways] if own_loss else [])]

    def _tried(self, choice: PlanChoice) -> _Metered | None:
        """The step with this choice; None, with its reason, where it cannot be made."""
        names = [*(["tile_mlp"] if choice.tiled else []), *(["fuse_loss"] if choice.fused_loss else [])]
        if any(name in self.unavailable for name in names):
            return None
        try:
            return self._metered(choice)
        except (SurgeryError, PlanningError) as error:
            self.unavailable[names[-1]] = str(error)
            return None

    def _metered(self, choice: PlanChoice) -> _Metered:
        with choice.apply(self.model, self_check="never") as applied, warnings.catch_warnings():
            warnings.simplefilter("ignore", SurgeryWarning)  # what it would say is asked for below
            on_host_without_data(self.model)
            step, drawn = self._step()
            for part in applied.parts:
                if isinstance(part, FusedLoss):
                    part.check()
            explained = explanation_of(self.model, step, drawn, self._training)
        kept: Counter[str] = Counter()
        for allocation in step.allocations:
            if allocation.kind is Kind.KEPT:
                kept[nearest(allocation.place.module, self._names)] += allocation.bytes
        seconds: defaultdict[str, float] = defaultdict(float)
        for each in step.work:
            if each.forward:
                seconds[nearest(each.module, self._names)] += seconds_of([each], self.device)
        return _Metered(explained, kept, seconds_of(step.work, self.device), seconds)

    def _rows(
        self, change: PlanChoice, bare: _Metered, full: _Metered, moved: _Metered | None, spent: float
    ) -> list[PlanRow]:
        """The front with one change: `bare` without checkpointing, `full` with, `moved` with offload and no change."""
        after = moved or full
        stacks = [
            _alternatives(
                [bare.kept.get(block.name, 0) for block in blocks],
                [after.kept.get(block.name, 0) for block in blocks],
                [self._seconds(block, full.kept.get(block.name, 0) if moved else 0) for block in blocks],
            )
            for blocks in self.stacks.values()
        ]
        outside = full.explained.kept_bytes - sum(full.kept.get(name, 0) for name in self._names)
        above = full.above
        return [
            self._row(change, solution, outside, above, spent, offload=moved is not None) for solution in front(stacks)
        ]

    def _row(
        self, change: PlanChoice, solution: Solution, outside: int, above: int, spent: float, *, offload: bool
    ) -> PlanRow:
        first = dict(zip(self.stacks, solution.checkpointed, strict=True))
        choice = replace(change, first=first, offload=offload and any(solution.checkpointed))
        kept = solution.kept + outside
        return PlanRow(choice, kept, kept + above, solution.seconds + spent, measured=False)

    def _seconds(self, block: Block, moved: int) -> float:
        """The time that it costs to recompute a block, and to wait for its input where that is moved to the host."""
        compute, transfer = self.plain.block_seconds.get(block.name, 0.0), moved / self.device.link
        return compute + max(transfer - compute, 0.0) + max(transfer - 3 * compute, 0.0)


def _alternatives(before: Sequence[int], after: Sequence[int], seconds: Sequence[float]) -> list[Alternative]:
    """A stack with none, one, two ... of its first blocks checkpointed."""
    changes = [checkpointed - kept for kept, checkpointed in zip(before, after, strict=True)]
    kept = accumulate(changes, initial=sum(before))
    spent = accumulate(seconds, initial=0.0)
    return [Alternative(number, *costs) for number, costs in enumerate(zip(kept, spent, strict=True))]
