"""`plan`: choose the fewest recomputes with which a step of a model fits into a memory budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from ckpt_surgery.errors import DoesNotFitError, PlanningError
from ckpt_surgery.long_sequences.calls import AppliedPlan
from ckpt_surgery.measure.arguments import Inputs
from ckpt_surgery.measure.generators import random_state_kept
from ckpt_surgery.planning.allocations import StepAllocations
from ckpt_surgery.planning.answer import LeverPeak, may_save_more, plan_line, shortage_line
from ckpt_surgery.planning.devices import Device
from ckpt_surgery.planning.explain import metered
from ckpt_surgery.planning.explanation import Explanation
from ckpt_surgery.planning.lever_steps import steps_with_levers
from ckpt_surgery.planning.mixtures import PlanRow
from ckpt_surgery.planning.plan_page import FrontPoint, plan_page
from ckpt_surgery.planning.planner import BudgetPlanner, PlanFront
from ckpt_surgery.planning.shapes import ShapesOnly, shapes_of
from ckpt_surgery.planning.training import TrainingSetup
from ckpt_surgery.report.html import framed
from ckpt_surgery.runtime.surgery.surgery import surgeries_in
from ckpt_surgery.text import size, size_in_bytes

_MOST_POINTS = 60
"""The most points of a front on a page."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How to train a model within `memory` bytes, and what that costs. All sizes are bytes on the device.

    Attributes:
        model: the class of the model.
        memory: the budget.
        device: whose time was estimated.
        stacks: the names of the blocks in each stack.
        chosen: the way with the least extra time that fits.
        explanation: of a step with the chosen way.
        before: the explanation of a step in which nothing is done.
        front: the ways that no other beats, from the fastest to the one with the lowest peak.
        step_seconds: the least time of a step without recomputing, by what is computed and what is moved.
        unavailable: why `fuse_loss`, `tile_mlp` or a name of `save` cannot be applied to this model, by these names.
        levers: the peaks with what may save more than the plan, tried on top of all that a plan can do, the most
            effective first.
    """

    model: str
    memory: int
    device: Device
    stacks: Mapping[str, tuple[str, ...]]
    chosen: PlanRow
    explanation: Explanation
    before: Explanation
    front: tuple[PlanRow, ...]
    step_seconds: float
    unavailable: Mapping[str, str]
    levers: tuple[LeverPeak, ...] = ()

    @property
    def is_needed(self) -> bool:
        """Whether anything has to be done."""
        return self.chosen.choice.is_needed

    @property
    def code(self) -> str:
        """The Python code that applies the plan to a `model`, with its imports; empty if nothing has to be done."""
        return self.chosen.choice.code

    @property
    def answer(self) -> str:
        """A few sentences on whether the step fits, with what, and what would save more."""
        return plan_line(self.memory, self.chosen.choice.name, self.before, self.explanation, self.levers)

    def some_of_front(self, most: int) -> list[PlanRow]:
        """Thin out the front: keep the chosen way, both ends and some between, in their order.

        Of two ways with the same printed peak or time, one is left out.

        Args:
            most: about how many ways to keep.

        Returns:
            The ways that are kept.
        """
        shown: list[PlanRow] = []
        for row in self.front:
            keep = True
            while keep and shown:
                same_time = self.extra_time(row) == self.extra_time(shown[-1])
                if not same_time and size(row.peak_bytes) != size(shown[-1].peak_bytes):
                    break
                if row == self.chosen or (same_time and shown[-1] != self.chosen):
                    shown.pop()
                else:
                    keep = False
            shown += [row] if keep else []
        step = -(-len(shown) // most)
        ends = (shown[0], shown[-1], self.chosen)
        return [row for place, row in enumerate(shown) if row in ends or place % step == 0]

    def extra_time(self, row: PlanRow) -> str:
        """Format the extra time of a way as a percentage of a step's.

        Args:
            row: a way of the front.

        Returns:
            The percentage, such as "12.5 %".
        """
        return f"{100 * row.extra_seconds / self.step_seconds if self.step_seconds else 0.0:.1f} %"

    def to_yaml(self) -> str:
        """Return the calls with their arguments, and the predictions in bytes and seconds, as YAML."""
        row = self.chosen
        return row.choice.to_yaml(
            self.model,
            self.memory,
            self.device.name,
            kept_bytes=row.kept_bytes,
            peak_bytes=row.peak_bytes,
            extra_seconds=row.extra_seconds,
            step_seconds=self.step_seconds,
        )

    def to_html(self) -> str:
        """Return one HTML page that needs no network: the calls, the front (drawing and table), the chosen step."""
        points = [
            FrontPoint(
                row.choice.name,
                row.peak_bytes,
                row.extra_seconds / self.step_seconds if self.step_seconds else 0.0,
                self.extra_time(row),
                row.measured,
                row == self.chosen,
            )
            for row in self.some_of_front(_MOST_POINTS)
        ]
        return plan_page(self.model, self.memory, self.code, points, self.explanation, self.answer)

    def _repr_html_(self) -> str:
        """Show the page in a notebook's cell."""
        return framed(self.to_html())

    def apply(self, model: nn.Module) -> AppliedPlan | None:
        """Apply the plan to `model`.

        Args:
            model: the model that was planned for, or another of its kind. It is changed in place.

        Returns:
            The change, whose `undo()` takes all of it back; None if nothing has to be done.

        Raises:
            SurgeryError: as the calls in `code` do; the model is then as it was.
        """
        return self.chosen.choice.apply(model) if self.is_needed else None


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
    changes: bool = True,
    save: bool = True,
    loss: Callable[[Any], Tensor] | None = None,
) -> Plan:
    """Choose what to do to `model` so that its step fits into `memory` at the least extra time.

    Nothing is run: steps are metered on shapes, as in `explain`. The chosen step is metered too, so its peak is not an
    estimate. As many blocks are checkpointed as needed, the first ones of alike blocks: the backward begins with the
    others, and frees what they keep before anything is recomputed. Each checkpointed block may keep the results of
    attention, matrix products, convolutions or norms that it runs; different blocks may keep different ones.

    Args:
        model: the model as it will be trained, in training mode; a surgery on it is ignored. It is only read.
        inputs: the arguments of its forward, as in `explain`, of the size used in training.
        memory: the budget for parameters, gradients, optimizer state and activations: bytes, or a text such as "80GB"
            (10**9) or "80GiB" (2**30). Leave a margin for what is not counted: the workspace of cuDNN and other
            kernels, the allocator's rounding and fragments, the CUDA context.
        optimizer: whose state is counted, as in `explain`.
        ranks: the number of ranks that the model is divided among, as in `explain`; `memory` is that of one rank.
        sharding: what the ranks divide, as in `explain`.
        device: whose time is estimated: "H100", "RTX 4090", "A100 40GB" and others in any usual spelling, or a TOML
            file.
        offload: whether the inputs of checkpointed blocks, and the results that they keep, may go to host memory if
            needed.
        changes: whether the loss may be fused (`fuse_loss`) and MLPs tiled (`tile_mlp`). The loss is not fused if
            `loss` is given.
        save: whether checkpointed blocks may keep the results of a few operators instead of running them again (`save`
            of `wrap_blocks`).
        loss: turns the model's output into a scalar tensor, as in `explain`.

    Returns:
        The plan. Print its `code`, or `apply()` it to a model.

    Raises:
        DoesNotFitError: no way fits; the message says how much memory is missing.
        PlanningError: the step cannot run on shapes, or an argument is not one of those above.
        SurgeryError: the model has no blocks.
        VerifyError: `inputs` is not a mapping, a tuple, a list or a tensor.
    """
    training = TrainingSetup.of(optimizer, ranks, sharding, device)
    budget = memory_bytes(memory)
    for option, value in (("offload", offload), ("changes", changes), ("save", save)):
        if type(value) is not bool:
            raise PlanningError(f"{option} is {value!r}: give True or False")
    shapes = ShapesOnly()
    with random_state_kept():
        copied = shapes_of(model, shapes, shapes.copies)
    for surgery in surgeries_in(copied):
        surgery.undo()

    def step(changed: nn.Module) -> tuple[StepAllocations, int]:
        with random_state_kept():
            return metered(changed, inputs, shapes, loss)

    return plan_on_shapes(
        copied,
        shapes,
        step,
        budget,
        training=training,
        offload=offload,
        changes=changes,
        save=save,
        own_loss=loss is None,
    )


def plan_on_shapes(
    model: nn.Module,
    shapes: ShapesOnly,
    step: Callable[[nn.Module], tuple[StepAllocations, int]],
    memory: int,
    *,
    training: TrainingSetup,
    offload: bool,
    changes: bool,
    save: bool = True,
    own_loss: bool = True,
) -> Plan:
    """Plan for a model that holds no data and has no surgery.

    `step` meters one step of the model, or of a copy of it, as it stands. Raises DoesNotFitError, which says what
    would fit.
    """
    planner = BudgetPlanner(model, partial(step, model), memory, training)
    before = planner.plain.explained

    def levers(front: PlanFront) -> tuple[LeverPeak, ...]:
        every = planner.everything(offload=offload, changes=changes, own_loss=own_loss)
        tried = steps_with_levers(model, shapes, step, every, training)
        peaks = [LeverPeak(each.lever, each.cards, each.explanation.peak_bytes) for each in tried]
        return LeverPeak.useful(peaks, front.explanation.peak_bytes, memory)

    if before.peak_bytes <= memory:
        front = planner.nothing()
    else:
        ways = planner.ways(offload=offload, changes=changes, save=save, own_loss=own_loss)
        try:
            front = planner.fastest(ways)
        except DoesNotFitError:
            least = planner.smallest(ways)
            raise DoesNotFitError(shortage_line(memory, least.explanation, levers(least))) from None
    return Plan(
        model=type(model).__name__,
        memory=memory,
        device=planner.device,
        stacks=planner.stacks,
        chosen=front.chosen,
        explanation=front.explanation,
        before=before,
        front=front.rows,
        step_seconds=planner.step_seconds,
        unavailable=planner.unavailable,
        levers=levers(front) if may_save_more(before, front.explanation) else (),
    )


def memory_bytes(memory: int | str) -> int:
    """Convert a budget to bytes. Raises PlanningError if it has no unit or is not a size."""
    if isinstance(memory, int) and not isinstance(memory, bool) and memory > 0:
        return memory
    said = size_in_bytes(memory) if isinstance(memory, str) else None
    if not said:
        raise PlanningError(f'memory is {memory!r}: give bytes as an integer, or a size with its unit, such as "80GB"')
    return said
