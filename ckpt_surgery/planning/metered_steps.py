"""Meter steps of one model with a plan's choices, and read from them what each block costs."""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from torch import nn

from ckpt_surgery.errors import SurgeryWarning
from ckpt_surgery.long_sequences.calls import AppliedPlan
from ckpt_surgery.long_sequences.fused_head import FusedLoss
from ckpt_surgery.planning.allocations import AllocationKind, StepAllocations, StepPhase
from ckpt_surgery.planning.choices import PlanChoice
from ckpt_surgery.planning.devices import Device
from ckpt_surgery.planning.explain import explanation_of, on_host_without_data
from ckpt_surgery.planning.explanation import Explanation
from ckpt_surgery.planning.repeats import RepeatedBlocks
from ckpt_surgery.planning.roofline import seconds_of
from ckpt_surgery.planning.sharding import sharded
from ckpt_surgery.planning.training import TrainingSetup
from ckpt_surgery.runtime.blocks.discovery import find_blocks, nearest

_OFFLOAD_REACH = 4
"""The number of blocks whose inputs offload moves at once."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The costs of a step with a choice: the bytes kept, in all and by block, and the least seconds.

    A block's inputs that are kept only because it is checkpointed count as its own. `block_seconds` are those of each
    block's forward, `recomputed` those of its recompute. `made` identifies all that is kept, by the block that made
    it, module, operator, line and shape.
    """

    kept_bytes: int
    kept: Mapping[str, int]
    seconds: float
    block_seconds: Mapping[str, float]
    recomputed: Mapping[str, float]
    operators: frozenset[str]
    moments: StepMoments
    made: frozenset[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class MeteredStep:
    """A step with a choice that was run in full: its explanation and its costs."""

    explained: Explanation
    costs: StepCosts


class MeteredSteps:
    """The metered steps of a model, each run once. `step` meters one as the model stands; `plain` changes nothing."""

    def __init__(
        self,
        model: nn.Module,
        step: Callable[[], tuple[StepAllocations, int]],
        nothing: PlanChoice,
        training: TrainingSetup,
        device: Device,
    ) -> None:
        self._model, self._step, self._training, self._device = model, step, training, device
        self._nothing = nothing
        names = frozenset(name for some in nothing.stacks.values() for name in some)
        self._block_of = cache(partial(nearest, names=names))
        self._known: dict[Hashable, MeteredStep] = {}
        self._estimates: dict[Hashable, StepCosts] = {}
        self._records: dict[Hashable, StepAllocations] = {}
        self._repeats: dict[bool, RepeatedBlocks | None] = {}  # by offload; None if not proved
        self._made_plain: frozenset[tuple[Any, ...]] | None = None
        self.plain = self.metered(nothing)
        self._made_plain = self.plain.costs.made

    def metered(self, choice: PlanChoice) -> MeteredStep:
        """Return the step with this choice. Raises SurgeryError and PlanningError."""
        if choice.key not in self._known:
            with self._applied(choice) as run:
                self._records[choice.key], drawn = run()
                step = self._records[choice.key]
                explained = explanation_of(self._model, step, drawn, self._training)
                self._known[choice.key] = MeteredStep(explained, self._costs(step, explained.always_bytes))
        return self._known[choice.key]

    def estimated(self, choice: PlanChoice) -> StepCosts:
        """Return a choice's costs, from a step with few of many alike blocks if `use_repeats` proved these enough."""
        repeats = self._repeats.get(choice.offload)
        if repeats is not None and choice.key not in self._known and choice.key not in self._estimates:
            with self._applied(choice) as run:
                step = repeats.step(lambda: run()[0])
                if step is not None:
                    self._estimates[choice.key] = self._costs(step, self.plain.explained.always_bytes)
        return self._estimates.get(choice.key) or self.metered(choice).costs

    def use_repeats(self, *proofs: PlanChoice) -> None:
        """Let estimates run few of many alike blocks, if with these choices few predict exactly what all allocate."""
        for offload in (False, True):
            chosen = [choice for choice in proofs if choice.offload == offload]
            if chosen and offload not in self._repeats:
                reach = _OFFLOAD_REACH if offload else 1
                plain = self._record(self._nothing)
                repeats = RepeatedBlocks(self._model, self._nothing.stacks, self._block_of, plain, reach)
                proved = repeats.most_left_out and all(self._proved(repeats, choice) for choice in chosen)
                self._repeats[offload] = repeats if proved else None
        self._records.clear()  # they are large, and not needed any more

    def _proved(self, repeats: RepeatedBlocks, choice: PlanChoice) -> bool:
        whole = self._record(choice)
        with self._applied(choice) as run:
            return repeats.proved(whole, lambda: run()[0])

    def _record(self, choice: PlanChoice) -> StepAllocations:
        if choice.key not in self._records:
            with self._applied(choice) as run:
                self._records[choice.key], _ = run()
        return self._records[choice.key]

    @contextmanager
    def _applied(self, choice: PlanChoice) -> Iterator[Callable[[], tuple[StepAllocations, int]]]:
        """Apply the choice to the model inside the `with`, and yield a function that meters a step."""
        with applied_on_shapes(choice, self._model) as applied:

            def checked() -> tuple[StepAllocations, int]:
                step = self._step()
                for part in applied.parts:
                    if isinstance(part, FusedLoss):
                        part.check()
                return step

            yield checked

    def _costs(self, step: StepAllocations, always_bytes: int) -> StepCosts:
        """Return what a step costs, while its choice is applied to the model."""
        kept: Counter[str] = Counter()
        made: set[tuple[Any, ...]] = set()
        for allocation in step.allocations:
            if allocation.kind is AllocationKind.KEPT:
                place = allocation.place
                block, keeper = self._block_of(place.module), self._block_of(allocation.kept_at.module)
                key = (block, place.module, allocation.operator, place.line, allocation.shape)
                made.add(key)
                is_input = self._made_plain is not None and keeper and key not in self._made_plain
                kept[keeper if is_input else block] += allocation.bytes
        seconds: dict[StepPhase, defaultdict[str, float]] = {phase: defaultdict(float) for phase in StepPhase}
        for each in step.work:
            seconds[each.phase][self._block_of(each.module)] += seconds_of([each], self._device)
        of_rank = sharded(step, self._model, [block.name for block in find_blocks(self._model)], self._training)
        return StepCosts(
            of_rank.kept_bytes,
            kept,
            seconds_of(step.work, self._device),
            seconds[StepPhase.FORWARD],
            seconds[StepPhase.RECOMPUTE],
            frozenset(each.operator for each in step.allocations if self._block_of(each.place.module)),
            StepMoments.of(of_rank, always_bytes, kept, self._block_of),
            frozenset(made),
        )


@contextmanager
def applied_on_shapes(choice: PlanChoice, model: nn.Module) -> Iterator[AppliedPlan]:
    """Apply the choice to a model that holds no data inside the `with`, and silence its warnings."""
    with choice.apply(model, self_check="never") as applied, warnings.catch_warnings():
        warnings.simplefilter("ignore", SurgeryWarning)  # `MeteredSteps` checks what they say
        on_host_without_data(model)
        yield applied


@dataclass(frozen=True, slots=True)
class StepMoments:
    """The most bytes alive at the moments that may be a step's peak, including what lives through the whole step.

    The peak of a mixture of steps follows from them: a block's backward frees what the block kept, and begins while
    all blocks before it still keep theirs. Anything else that is alive then depends on this block alone.

    Attributes:
        edges: before the first block's forward, and after the last backward of a block.
        loss: between the blocks' forwards and backwards, without what blocks keep.
        blocks: in the backward of each block, without what earlier blocks keep; in the order of the forward.
    """

    edges: int
    loss: int
    blocks: Mapping[str, int]

    @classmethod
    def of(
        cls, step: StepAllocations, always: int, kept: Mapping[str, int], block_of: Callable[[str], str]
    ) -> StepMoments:
        """Read the moments of a step; `always` are the bytes that live through it, `kept` those that each block keeps.

        `block_of` returns the block that a module is in, an empty string for none.
        """
        alive = [always + held for held in step.alive_bytes]
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
            blocks[block] = max((alive[born - 1] for born in backward.get(block, ())), default=0) - before
            before += kept.get(block, 0)
        first_forward = min(forward.values(), default=1)
        return cls(
            edges=max((*alive[: first_forward - 1], *alive[last_backward:]), default=0),
            loss=max(alive[last_forward : first_backward - 1], default=0) - before,
            blocks=blocks,
        )
