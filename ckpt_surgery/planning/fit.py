"""`fit`: at a script's first batch, choose what to do to its model so that its steps fit into memory.

1. Once the model, its optimizer and the batch exist, the step and the optimizer's step run on shapes first.
2. The fastest way of `plan` that fits is applied within that forward, and the training goes on.
3. Whatever goes wrong here, the model trains as the script has it.
"""

from __future__ import annotations

import inspect
import re
import warnings
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from traceback import walk_stack
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from ckpt_surgery.errors import DoesNotFitError, PlanningError, SurgeryWarning
from ckpt_surgery.guarding.asked_options import is_asked, wrap_as_asked
from ckpt_surgery.guarding.failed_step import optimizers_of
from ckpt_surgery.long_sequences.calls import AppliedPlan, LibrarySwitchOff, apply_plan
from ckpt_surgery.measure.generators import random_state_kept
from ckpt_surgery.measure.loss import loss_of
from ckpt_surgery.measure.model_hook import ModelHook
from ckpt_surgery.planning.allocations import AllocationKind, StepAllocations, StepPhase
from ckpt_surgery.planning.answer import LeverPeak, StateLever
from ckpt_surgery.planning.choices import PlanChoice
from ckpt_surgery.planning.devices import DEVICES, MARGIN, Device
from ckpt_surgery.planning.explain import explanation_of, held_bytes, metered
from ckpt_surgery.planning.first_batch import FirstBatch, is_alone, place_of, running_wrapper
from ckpt_surgery.planning.fitted import Fitted, Room
from ckpt_surgery.planning.lever_steps import steps_with_levers
from ckpt_surgery.planning.metered_steps import applied_on_shapes
from ckpt_surgery.planning.planner import BudgetPlanner
from ckpt_surgery.planning.script_optimizer import OptimizerCost
from ckpt_surgery.planning.shapes import ShapesOnly, shapes_of
from ckpt_surgery.planning.states import state_bytes
from ckpt_surgery.planning.training import Optimizer, TrainingSetup
from ckpt_surgery.runtime.surgery.surgery import surgeries_in
from ckpt_surgery.runtime.tools.containers import tensors
from ckpt_surgery.static.results import Progress
from ckpt_surgery.text import error_line, size
from ckpt_surgery.torch_names import tree_map_only

_ASSUMED = DEVICES["h100"]
"""The device whose time is given if no figures are known of the card."""
_ZEROES_LATE = re.compile(r"(pytorch_)?lightning\..*\.optimization\.automatic")
"""The module of Lightning that zeroes gradients between the forward and the backward."""
_CHOICES = 4
"""The most choices for a model: another is made if a batch is larger or gradients are accumulated."""
_CUTS = 16
"""The largest batch and length that fit are searched in steps of a sixteenth of the given ones."""


@dataclass(frozen=True, slots=True)
class FitTarget:
    """The memory that steps must fit into: `memory` bytes, or the card's if None, less the share `margin`.

    `device` is the one whose time is estimated; None for the card itself.
    """

    memory: int | None = None
    device: Device | None = None
    margin: float = MARGIN


class Fit(FirstBatch):
    """A model that is made to fit at its first batch, until `undo`.

    `fitted` is the latest choice, None until there is one; `problem` says why a choice failed. `tell` is called with
    this object after each choice; while one is made, what `progress` yields is called for each metered step.
    """

    def __init__(
        self,
        model: nn.Module,
        target: FitTarget,
        tell: Callable[[Fit], object],
        progress: Callable[[], AbstractContextManager[Progress | None]] = nullcontext,
    ) -> None:
        self.model, self.target, self.tell, self._progress = model, target, tell, progress
        self.fitted: Fitted | None = None
        self.problem = ""
        self.applied: AppliedPlan | None = None
        self._peak_before = self._input_bytes = 0
        self._left = _CHOICES
        self._has_graph = False
        self._zeroes_late = False
        super().__init__(model)

    def __str__(self) -> str:
        return self.problem or str(self.fitted or "no batch has come")

    def begin(self, model: nn.Module, inputs: Mapping[str, Any]) -> None:
        """Choose and apply in the first call that trains, and again when a later call needs more than was counted."""
        if not model.training or self._has_graph or (self.fitted is not None and not self._needs_more(inputs)):
            return
        try:
            if self.applied is not None and not self.applied.undone:
                self.applied.undo()
            self.fitted = self._chosen(inputs)
            self.applied = apply_plan(self.fitted.choice.arguments(), model)
            self._left -= 1
        except Exception as error:  # whatever a model raises: the training goes on
            self.problem = str(error) if isinstance(error, PlanningError) else error_line(error)
            self._left = 0
            if is_asked(model):
                self.applied = AppliedPlan([wrap_as_asked(model)])
        if not self._left:
            self._handle.remove()
        self._input_bytes = held_bytes(tensors(inputs))
        self._follow_backward(model)
        self._peak_before = self.measured_peak() or 0
        self.tell(self)

    def _needs_more(self, inputs: Mapping[str, Any]) -> bool:
        """Tell whether uncounted gradients are held, or a larger batch would exceed the budget."""
        fitted = self.fitted
        assert fitted is not None
        if not fitted.held_bytes and any(each.grad is not None for each in self.model.parameters()):
            return not self._zeroes_late
        more = held_bytes(tensors(inputs)) / max(self._input_bytes, 1)
        return is_alone() and more > 1 and fitted.peak_of_larger(more) > fitted.room.ceiling >= fitted.peak_bytes

    def _follow_backward(self, model: nn.Module) -> None:
        """Note that a graph exists until its backward has run: meanwhile, the modules that made it stay unchanged."""

        def done(*_: Any) -> None:
            self._has_graph = False

        self._has_graph = True
        first = next(each for each in model.parameters() if each.requires_grad)  # its gradient comes last
        first.register_post_accumulate_grad_hook(ModelHook(done))  # type: ignore[no-untyped-call]

    def _chosen(self, inputs: Mapping[str, Any]) -> Fitted:
        """Choose; ranks of DistributedDataParallel adopt the choice of the rank that needs most."""
        wrapper = None if is_alone() else running_wrapper()
        own: Fitted | Exception
        try:
            modules = (frame.f_globals.get("__name__", "") for frame, _ in walk_stack(inspect.currentframe()))
            self._zeroes_late = any(map(_ZEROES_LATE.fullmatch, modules))
            with self._progress() as progress:
                own = fitted_to(self.model, inputs, self.target, zeroes_late=self._zeroes_late, progress=progress)
        except Exception as error:  # whatever a model raises
            own = error
        if wrapper is not None:
            by_rank: list[Any] = [None] * dist.get_world_size(wrapper.process_group)
            sent = own if isinstance(own, Fitted) else PlanningError(error_line(own))
            dist.all_gather_object(by_rank, sent, wrapper.process_group)
            fitted = [each for each in by_rank if isinstance(each, Fitted)]
            if len(fitted) == len(by_rank):
                neediest = max(fitted, key=lambda each: (not each.fits, each.extra_seconds, each.peak_bytes))
                if isinstance(own, Fitted) and neediest.choice.key != own.choice.key:
                    own = neediest
            elif isinstance(own, Fitted):
                own = next(each for each in by_rank if not isinstance(each, Fitted))
        if isinstance(own, Fitted):
            return own
        raise own

    def measured_peak(self) -> int | None:
        """Return the most bytes that torch has allocated on the model's card; None without a card."""
        place = next(self.model.parameters()).device
        return torch.cuda.max_memory_allocated(place) if place.type == "cuda" else None

    def outcome(self) -> str:
        """Compare the steps' measured peak with the prediction, in one sentence."""
        peak = self.measured_peak()
        if self.fitted is None:
            return ""
        if peak is None:
            return "the steps took: not measured, as nothing counts memory on this device"
        off = 100 * (self.fitted.peak_bytes / peak - 1) if peak else 0.0
        most = "at most " if peak <= self._peak_before else ""
        return f"the steps took {most}{size(peak)}: the prediction is off by {off:+.1f} %"

    def undo(self) -> None:
        """Restore the model as it was before."""
        self._handle.remove()
        if self.applied is not None and not self.applied.undone:
            self.applied.undo()
        self._undone = True


def fitted_to(
    model: nn.Module,
    inputs: Mapping[str, Any],
    target: FitTarget,
    *,
    zeroes_late: bool = False,
    progress: Progress | None = None,
) -> Fitted:
    """Choose the fastest way in which a step of a model with these inputs fits, or the smallest if none does.

    With `zeroes_late`, the gradients of the previous step are held until the backward. The model is only read.
    `progress` is called for each metered step. Raises PlanningError and SurgeryError if the step cannot be predicted.
    """
    optimizer = next(iter(optimizers_of(model.parameters())), None)
    room = room_for(model, inputs, optimizer, target)
    steps = _Steps(model, optimizer, room, zeroes_late=zeroes_late, progress=progress)
    with random_state_kept(), warnings.catch_warnings():
        warnings.simplefilter("ignore", SurgeryWarning)  # the real step gives them
        return steps.chosen(inputs)


class _Steps:
    """Steps on shapes of a copy of a model, without the script's checkpointing, with any inputs."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        room: Room,
        *,
        zeroes_late: bool,
        progress: Progress | None,
    ) -> None:
        self._original, self._room, self._progress = model, room, progress
        self._count = 0
        self._shapes = ShapesOnly()
        self.model = shapes_of(model, self._shapes, self._shapes.copies)
        for surgery in surgeries_in(self.model):
            surgery.undo()
        LibrarySwitchOff(self.model)
        self._optimizer = OptimizerCost.of(optimizer, self.model, self._shapes, self._shapes.copies)
        self._zeroes_late = zeroes_late
        accumulating = [] if zeroes_late else [each for each in model.parameters() if each.grad is not None]
        self._accumulating = [self._shapes.copies[id(each)] for each in accumulating]
        self._held_bytes = held_bytes(accumulating)
        self._training = TrainingSetup(Optimizer.NONE, device=room.device)

    def metered(self, inputs: Mapping[str, Any], model: nn.Module | None = None) -> tuple[StepAllocations, int]:
        """Meter a step of the copy as it stands, or of another model."""
        self._count += 1
        if self._progress is not None:
            self._progress("fit: metering steps", self._count, 0)
        for parameter in self._accumulating:
            parameter.grad = self._shapes.without_data(parameter.detach())
        torch.clear_autocast_cache()  # as a real step casts weights anew
        step, drawn = metered(model or self.model, inputs, self._shapes, _loss)
        if not self._zeroes_late:
            return step, drawn
        before = [
            replace(each, kind=AllocationKind.TEMPORARY, phase=StepPhase.FORWARD, born=1, died=step.backward_at)
            for each in step.allocations
            if each.kind is AllocationKind.GRADIENT
        ]
        return replace(step, allocations=(*before, *step.allocations)), drawn

    def chosen(self, inputs: Mapping[str, Any]) -> Fitted:
        """Choose for these inputs, as `fitted_to` does."""
        memory = self._room.ceiling - self._optimizer.state_bytes - self._room.others - self._held_bytes
        planner = BudgetPlanner(self.model, lambda: self.metered(inputs), memory, self._training)
        on_host = next(self._original.parameters()).is_cpu  # then offload would move nothing
        if planner.plain.explained.peak_bytes <= memory:
            front = planner.nothing()
        else:
            ways = planner.ways(offload=not on_host, changes=True)
            try:
                front = planner.fastest(ways)
            except DoesNotFitError:
                front = planner.smallest(ways)
        fitted = Fitted(
            model=type(self._original).__name__,
            batch=" x ".join(map(str, _sizes(inputs))) or "a batch",
            choice=front.chosen.choice,
            explanation=front.explanation,
            optimizer=self._optimizer,
            room=self._room,
            held_bytes=self._held_bytes,
            step_seconds=planner.step_seconds,
            extra_seconds=front.chosen.extra_seconds,
        )
        if fitted.fits:
            return fitted
        every = planner.everything(offload=not on_host, changes=True)
        return replace(fitted, levers=self._levers(inputs, fitted, every), largest=self._largest(inputs, fitted))

    def _largest(self, inputs: Mapping[str, Any], fitted: Fitted) -> dict[str, int]:
        """Find the largest batch and length with which a step fits, all else being equal."""
        return {
            name: self._most(inputs, dimension, whole, fitted)
            for dimension, (name, whole) in enumerate(zip(("batch", "length"), _sizes(inputs), strict=False))
            if whole > 1
        }

    def _most(self, inputs: Mapping[str, Any], dimension: int, whole: int, fitted: Fitted) -> int:
        grain = -(-whole // _CUTS)
        parts = range(grain, whole, grain)
        with applied_on_shapes(fitted.choice, self.model):
            fitting = bisect_left(parts, 1, key=lambda part: not self._fits(inputs, dimension, whole, part, fitted))
        return fitting * grain

    def _fits(self, inputs: Mapping[str, Any], dimension: int, whole: int, part: int, fitted: Fitted) -> bool:
        """Tell whether a step fits with a dimension of the inputs shortened, in those tensors that have it."""

        def shorter(tensor: Tensor) -> Tensor:
            has_it = tensor.ndim > dimension and tensor.shape[dimension] == whole
            return tensor.narrow(dimension, 0, part).clone() if has_it else tensor

        cut: dict[str, Any] = tree_map_only(Tensor, shorter, dict(inputs))
        try:
            explained = explanation_of(self.model, *self.metered(cut), self._training)
        except PlanningError:  # such as a text so short that no token is left to predict
            return False
        smaller = held_bytes(tensors(inputs)) - held_bytes(tensors(cut))
        room = replace(self._room, others=self._room.others - smaller)
        return replace(fitted, explanation=explained, room=room).fits

    def _levers(self, inputs: Mapping[str, Any], fitted: Fitted, every: PlanChoice) -> tuple[LeverPeak, ...]:
        """List what else a script could change to lower the peak, on top of all that a plan can do."""
        own, room = self._optimizer, self._room
        ranks = 1 if is_alone() else dist.get_world_size()
        without_buckets = replace(room, others=room.others - _bucket_bytes(self._original))
        peaks: list[LeverPeak] = []

        def metered(model: nn.Module) -> tuple[StepAllocations, int]:
            return self.metered(inputs, model)

        for tried in steps_with_levers(self.model, self._shapes, metered, every, self._training, ranks):
            changed = replace(fitted, explanation=tried.explanation)
            match tried.lever:
                case StateLever.FSDP:
                    states, update = own.state_bytes // tried.cards, own.step_bytes // tried.cards
                    cost = replace(own, state_bytes=states, step_bytes=update)
                    changed = replace(changed, optimizer=cost, room=without_buckets)
                case StateLever.ADAM_8BIT:
                    cost = replace(own, state_bytes=0, step_bytes=0)  # the explanation counts the state
                    changed = replace(changed, optimizer=cost)
                case _:
                    states = state_bytes(tried.model.parameters(), Optimizer.ADAMW)
                    cost = replace(own, state_bytes=states, step_bytes=0)
                    changed = replace(changed, optimizer=cost, held_bytes=0)
            peaks.append(LeverPeak(tried.lever, tried.cards, changed.peak_bytes, ranks))
        return LeverPeak.useful(peaks, fitted.peak_bytes, room.ceiling)


def room_for(
    model: nn.Module, inputs: Mapping[str, Any], optimizer: torch.optim.Optimizer | None, target: FitTarget
) -> Room:
    """Return the memory for a model's steps. Raises PlanningError if it is unknown or on several devices."""
    place = place_of(model)
    others, total, device = held_bytes(tensors(inputs)) + _bucket_bytes(model), target.memory, target.device
    if place.type == "cuda":
        if device is None:
            with suppress(PlanningError):  # times are only compared: those of another device serve
                device = Device.like(torch.cuda.get_device_name(place))
        free, _ = torch.cuda.mem_get_info(place)
        available = free + torch.cuda.memory_reserved(place)
        total = available if total is None else min(total, available)
        state = () if optimizer is None else (each for kept in optimizer.state.values() for each in tensors(kept))
        gradients = (each.grad for each in model.parameters() if each.grad is not None)
        known = held_bytes([*model.parameters(), *model.buffers(), *gradients, *state])
        others = max(torch.cuda.memory_allocated(place) - known, others) + (device or _ASSUMED).workspace
    if total is None and device is not None:
        total = device.memory
    if total is None:
        raise PlanningError(f"the model is on the device {place}, whose memory is not known: give --memory")
    figures = replace(device or _ASSUMED, capability=0.0)  # its workspace is counted above
    return Room(total, target.margin, others, figures, assumed=device is None)


def _bucket_bytes(model: nn.Module) -> int:
    """Count the bytes of gradient copies held by the DistributedDataParallel around a model, if one runs."""
    return 0 if running_wrapper() is None else held_bytes(each for each in model.parameters() if each.requires_grad)


def _loss(output: Any) -> Tensor:
    """Return an output's loss; if the script computes it, a stand-in that takes about as much as a cross entropy."""
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return loss_of(output)
    results = [each for each in tensors(output) if each.is_floating_point() and each.requires_grad]
    if not results:
        return loss_of(output)
    return torch.stack([log_softmax(each.float(), -1).mean().to(results[0].device) for each in results]).sum()


def _sizes(inputs: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the batch size, and the sequence length if the inputs hold an integer tensor of two dimensions."""
    given = list(tensors(inputs))
    for tensor in given:
        if tensor.ndim == 2 and not tensor.is_floating_point():
            return tuple(tensor.shape)
    return tuple(given[0].shape[:1]) if given else ()
