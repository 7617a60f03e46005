"""`plan`: the fewest recomputes with which a step of a model fits into so many bytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from torch import Tensor, nn

from ckpt_surgery.errors import DoesNotFitError, PlanningError
from ckpt_surgery.measure.arguments import Inputs
from ckpt_surgery.planning.allocations import Kind, StepAllocations
from ckpt_surgery.planning.devices import DEVICES, Device
from ckpt_surgery.planning.explain import explanation_of, metered, on_host_without_data
from ckpt_surgery.planning.explanation import Explanation
from ckpt_surgery.planning.roofline import seconds_of
from ckpt_surgery.planning.shapes import ShapesOnly, shapes_of
from ckpt_surgery.planning.solver import Alternative, Solution, front, unbeaten
from ckpt_surgery.planning.training import Training, training_of
from ckpt_surgery.runtime.discovery import Block
from ckpt_surgery.runtime.rng import random_state_kept
from ckpt_surgery.runtime.surgery import SURGERY, Surgery
from ckpt_surgery.runtime.wrap import wrap_blocks
from ckpt_surgery.text import size

_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?)B", re.IGNORECASE)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One way to train: the blocks checkpointed by stack, whether their inputs are offloaded, and what that costs.

    `peak_bytes` is what was measured on shapes where `measured` is set, else an estimate from steps that were.
    `extra_seconds` are those of one step on the device.
    """

    first: Mapping[str, int]
    offload: bool
    kept_bytes: int
    peak_bytes: int
    extra_seconds: float
    measured: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """How to train a model within `memory` bytes, and what that needs. All sizes are bytes on the device.

    Attributes:
        model: the class of the model.
        memory: the budget.
        device: whose time was estimated.
        blocks: the blocks of each stack.
        chosen: the way with the least extra time that fits; its `first` is empty where nothing has to be done.
        explanation: of a step with it.
        front: the ways that no other beats, from the fastest to the one that keeps least.
        step_seconds: the least time of a step without recomputing, by what is computed and what is moved.
    """

    model: str
    memory: int
    device: Device
    blocks: Mapping[str, int]
    chosen: PlanRow
    explanation: Explanation
    front: tuple[PlanRow, ...]
    step_seconds: float

    @property
    def is_needed(self) -> bool:
        """Whether anything has to be done at all."""
        return any(self.chosen.first.values())

    @property
    def code(self) -> str:
        """The Python that does it: one call; empty where nothing has to be done."""
        if not self.is_needed:
            return ""
        whole = all(self.blocks[stack] == number for stack, number in self.chosen.first.items())
        first = "" if whole else f", first={dict(self.chosen.first)!r}"
        offload = ', offload="cpu"' if self.chosen.offload else ""
        return f"wrap_blocks(model{first}{offload})"

    def apply(self, model: nn.Module) -> Surgery | None:
        """Do it on `model`, which may be the one that was planned for or another of its kind.

        Returns the surgery, whose `undo()` takes it back; None where nothing has to be done. Raises SurgeryError as
        `wrap_blocks` does.
        """
        if not self.is_needed:
            return None
        return wrap_blocks(model, first=dict(self.chosen.first), offload="cpu" if self.chosen.offload else None)


def plan(
    model: nn.Module,
    inputs: Inputs,
    memory: int | str,
    *,
    optimizer: str = "adamw",
    ranks: int = 1,
    sharding: str | None = None,
    device: str = "H100",
    offload: bool = True,
    loss: Callable[[Any], Tensor] | None = None,
) -> Plan:
    """Choose which blocks of `model` to checkpoint so that a step of it fits into `memory` at the least extra time.

    Nothing is run: steps are metered on shapes, as `explain` does, the one that is chosen too, so that what is
    promised is what was seen. The first blocks of each stack are checkpointed, as many as needed; the backward begins
    with the others, and frees what they keep before anything is recomputed.

    Args:
        model: as it will be trained, in training mode; a surgery on it is left out of account. It is only read.
        inputs: the arguments of its forward, of the size that will be trained with.
        memory: for everything: parameters, gradients, optimizer state and activations. Bytes, or a text such as
            "80GB" (10**9) or "80GiB" (2**30). Leave a margin for what is not counted: the workspace of kernels, the
            allocator's rounding and fragments, the CUDA context.
        optimizer: whose state is counted.
        ranks: among how many the model is divided, as in `explain`; `memory` is that of one of them.
        sharding: what they divide, likewise.
        device: whose time is estimated: "H100", "H200", "A100", "L40S", "4090", "MI300X", or a TOML file.
        offload: whether the inputs of checkpointed blocks may go to host memory where that is needed.
        loss: as in `explain`.

    Raises:
        DoesNotFitError: no way fits; the message says how much is missing.
        PlanningError: the step cannot run on shapes, or an argument is none of those above.
        SurgeryError: the model has no blocks.
    """
    training = training_of(optimizer, ranks, sharding, device)
    shapes = ShapesOnly()
    with random_state_kept():
        copied = shapes_of(model, shapes)
    for module in copied.modules():
        surgery = vars(module).get(SURGERY)
        if isinstance(surgery, Surgery):
            surgery.undo()

    def step() -> tuple[StepAllocations, int]:
        with random_state_kept():
            return metered(copied, inputs, shapes, loss)

    return plan_on_shapes(
        copied,
        step,
        memory_bytes(memory),
        training=training,
        offload=offload,
    )


def plan_on_shapes(
    model: nn.Module,
    step: Callable[[], tuple[StepAllocations, int]],
    memory: int,
    *,
    training: Training,
    offload: bool,
) -> Plan:
    """The plan for a model that holds no data, without a surgery; `step` meters one step of it as it stands."""
    planner = _BudgetPlanner(model, step, memory, training)
    if planner.plain.peak_bytes <= memory:
        nothing = planner.row(Solution((0,) * len(planner.stacks), planner.plain.kept_bytes, 0.0), offload=False)
        return planner.plan(nothing, planner.plain)
    ways = planner.ways(offload)
    return planner.fastest(ways)


class _BudgetPlanner:
    """The steps of one model that were metered, and what they say of others."""

    def __init__(
        self,
        model: nn.Module,
        step: Callable[[], tuple[StepAllocations, int]],
        memory: int,
        training: Training,
    ) -> None:
        self.model, self.memory = model, memory
        self.device = training.device or DEVICES["h100"]
        self._step, self._training = step, training
        without, self.plain = self._metered()
        surgery = wrap_blocks(model, self_check="never")
        self.stacks = {stack.name: stack.blocks for stack in surgery.stacks if stack.wanted}
        self._without = without
        self._rows: list[PlanRow] = []

    def ways(self, offload: bool) -> list[tuple[Solution, bool]]:
        """The ways that no other beats, and whether they offload, from the fastest to the one that keeps least."""
        found = dict.fromkeys(self._front(offload=False), False)
        if offload:
            found = {**dict.fromkeys(self._front(offload=True), True), **found}
        return [(solution, found[solution]) for solution in unbeaten(found)]

    def fastest(self, ways: Sequence[tuple[Solution, bool]]) -> Plan:
        """The plan for the fastest way whose step fits. Raises PlanningError."""
        over = self._least.peak_bytes - self._least.kept_bytes
        place = next((at for at, (one, _) in enumerate(ways) if one.kept + over <= self.memory), len(ways) - 1)
        fits: dict[int, Explanation] = {}
        while 0 <= place < len(ways):
            explained = self._with(*ways[place])
            if explained.peak_bytes <= self.memory:
                fits[place] = explained
                place -= 1
            else:
                place += 1
            if place in fits:
                break
            if fits and place > min(fits):
                break
        if not fits:
            missing = size(explained.peak_bytes - self.memory)
            raise DoesNotFitError(
                f"{type(self.model).__name__} does not fit into {size(self.memory)}: at the least a step needs "
                f"{size(explained.peak_bytes)}, {missing} more; take fewer tokens, adapters, or an optimizer with "
                "a smaller state"
            )
        best = min(fits)
        chosen = self.row(ways[best][0], offload=ways[best][1], explained=fits[best])
        return self.plan(chosen, fits[best], [self.row(one, offload=moved, over=over) for one, moved in ways])

    def plan(self, chosen: PlanRow, explained: Explanation, ways: Sequence[PlanRow] = ()) -> Plan:
        """The plan with this choice."""
        return Plan(
            model=type(self.model).__name__,
            memory=self.memory,
            device=self.device,
            blocks={name: len(blocks) for name, blocks in self.stacks.items()},
            chosen=chosen,
            explanation=explained,
            front=tuple(chosen if row.first == chosen.first else row for row in ways) or (chosen,),
            step_seconds=seconds_of(self._without.work, self.device),
        )

    def row(
        self, solution: Solution, *, offload: bool, explained: Explanation | None = None, over: int = 0
    ) -> PlanRow:
        """A solution as the surgery takes it; `over` is what a peak is above what is kept, if it was not metered."""
        known = explained or (None if any(solution.checkpointed) else self.plain)
        return PlanRow(
            first=dict(zip(self.stacks, solution.checkpointed, strict=True)),
            offload=offload and any(solution.checkpointed),
            kept_bytes=known.kept_bytes if known else solution.kept,
            peak_bytes=known.peak_bytes if known else solution.kept + over,
            extra_seconds=solution.seconds,
            measured=known is not None,
        )

    def _front(self, *, offload: bool) -> list[Solution]:
        """The front of all stacks with or without offload: what each block keeps is that of a step of its own kind."""
        wrapped, self._least = self._with_all(offload)
        before, after = self._without, wrapped
        stacks = [
            _alternatives(
                [_kept(before, block) for block in blocks],
                [_kept(after, block) for block in blocks],
                [self._seconds(block, _kept(self._checkpointed, block) if offload else 0) for block in blocks],
            )
            for blocks in self.stacks.values()
        ]
        outside = self.plain.kept_bytes - sum(_kept(before, b) for blocks in self.stacks.values() for b in blocks)
        return [Solution(one.checkpointed, one.kept + outside, one.seconds) for one in front(stacks)]

    def _with_all(self, offload: bool) -> tuple[StepAllocations, Explanation]:
        wrap_blocks(self.model, self_check="never", offload="cpu" if offload else None)
        on_host_without_data(self.model)
        step, explained = self._metered()
        if not offload:
            self._checkpointed = step
        return step, explained

    def _with(self, solution: Solution, offload: bool) -> Explanation:
        row = self.row(solution, offload=offload)
        wrap_blocks(self.model, self_check="never", first=row.first, offload="cpu" if row.offload else None)
        on_host_without_data(self.model)
        return self._metered()[1]

    def _metered(self) -> tuple[StepAllocations, Explanation]:
        step, drawn = self._step()
        return step, explanation_of(self.model, step, drawn, self._training)

    def _seconds(self, block: Block, moved: int) -> float:
        """The time that it costs to recompute a block, and to wait for its input where that is moved to the host."""
        inside = (each for each in self._without.work if each.forward and _is_in(each.module, block))
        compute, transfer = seconds_of(inside, self.device), moved / self.device.link
        return compute + max(transfer - compute, 0.0) + max(transfer - 3 * compute, 0.0)


def memory_bytes(memory: int | str) -> int:
    """A budget in bytes. Raises PlanningError where it has no unit or is no size."""
    if isinstance(memory, int) and not isinstance(memory, bool) and memory > 0:
        return memory
    match = _MEMORY.fullmatch(memory.strip()) if isinstance(memory, str) else None
    if match is None or not float(match[1]):
        raise PlanningError(f'memory is {memory!r}: give bytes as an integer, or a size with its unit, such as "80GB"')
    unit = match[2].lower()
    return int(float(match[1]) * (1024 if unit.endswith("i") else 1000) ** _POWERS[unit[0]])


def _alternatives(before: Sequence[int], after: Sequence[int], seconds: Sequence[float]) -> list[Alternative]:
    """A stack with none, one, two ... of its first blocks checkpointed."""
    changes = [checkpointed - kept for kept, checkpointed in zip(before, after, strict=True)]
    kept = accumulate(changes, initial=sum(before))
    spent = accumulate(seconds, initial=0.0)
    return [Alternative(number, *one) for number, one in enumerate(zip(kept, spent, strict=True))]


def _kept(step: StepAllocations, block: Block) -> int:
    """The bytes that a block made and that are kept for the backward."""
    return sum(one.bytes for one in step.allocations if one.kind is Kind.KEPT and _is_in(one.place.module, block))


def _is_in(module: str, block: Block) -> bool:
    return module == block.name or module.startswith(f"{block.name}.")
