"""`wrap_fastest`: checkpoint in the way with the least predicted time for the first batch on this card.

1. A step with each way is metered on shapes, as in `explain`: nothing is computed, and the model is only read.
2. Until then, and wherever nothing can be predicted, blocks are checkpointed and keep nothing.
3. Ranks of DistributedDataParallel choose together, by the slowest and fullest of them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ckpt_surgery.errors import PlanningError, SurgeryError, SurgeryWarning
from ckpt_surgery.measure.generators import random_state_kept
from ckpt_surgery.planning.allocations import StepPhase
from ckpt_surgery.planning.cuda_operators import CudaOperators
from ckpt_surgery.planning.devices import Device
from ckpt_surgery.planning.explain import explanation_of, held_bytes, metered, on_host_without_data
from ckpt_surgery.planning.first_batch import FirstBatch, is_alone, place_of, running_wrapper
from ckpt_surgery.planning.roofline import seconds_of
from ckpt_surgery.planning.shapes import ShapesOnly, shapes_of
from ckpt_surgery.planning.training import Optimizer, TrainingSetup
from ckpt_surgery.runtime.offload.buffer_pool import PinnedPool
from ckpt_surgery.runtime.selective.policies import ATTENTION
from ckpt_surgery.runtime.surgery.checkpointing import Checkpointing
from ckpt_surgery.runtime.surgery.options import SaveOption, saved_names
from ckpt_surgery.runtime.surgery.surgery import Surgery, surgeries_in
from ckpt_surgery.runtime.surgery.wrap import wrap_blocks
from ckpt_surgery.text import error_line, listed, size, text_table

CHOSEN_OPTIONS = ("offload", "save", "save_offload")
"""The options of `wrap_blocks` that `wrap_fastest` chooses."""
_NOISE = 0.05
"""The share by which a way must be faster than simpler ones: predictions are off by as much."""
_USED_SHARE = 0.9
"""A way fits if it needs at most this share of the memory: fragments and workspaces need the rest."""
_OFFLOAD_HOST_SECONDS = 125e-6
_SAVE_HOST_SECONDS = 250e-6
"""The host's extra time for a block, counted in full: measured with 24 blocks on the host of one H200 (offload), and
the bound that `benchmarks/host_cost.py` holds (save).
"""


class Way(StrEnum):
    """What checkpointed blocks keep for their backward, and where; the simplest way comes first."""

    NOTHING_KEPT = "nothing kept"
    OFFLOADED = "inputs offloaded"
    ATTENTION_OFFLOADED = "attention kept, all offloaded"
    ATTENTION = "attention kept"

    @property
    def options(self) -> dict[str, Any]:
        """The options of a surgery for this way."""
        offload = "cpu" if self in (Way.OFFLOADED, Way.ATTENTION_OFFLOADED) else None
        names = saved_names(ATTENTION) if self in (Way.ATTENTION, Way.ATTENTION_OFFLOADED) else ()
        return {"offload": offload, "save": SaveOption(names, bool(offload and names))}


@dataclass(frozen=True, slots=True)
class WayCosts:
    """A way's predicted seconds per step, infinite if a `problem` bars it, and its peak in bytes."""

    way: Way
    seconds: float
    peak_bytes: int
    problem: str = ""

    @classmethod
    def of(cls, model: nn.Module, inputs: Mapping[str, Any], device: Device) -> list[WayCosts]:
        """Predict what a step of a model with a surgery costs in each way on a device, with AdamW's state in the peak.

        The model is only read. Raises PlanningError if a step in which nothing is kept cannot run on shapes.
        """
        shapes = ShapesOnly()
        operators = CudaOperators() if next(model.parameters()).device.type == "cpu" else nullcontext()
        training = TrainingSetup(Optimizer.ADAMW, device=device)
        costs = []
        with random_state_kept(), warnings.catch_warnings():
            warnings.simplefilter("ignore", SurgeryWarning)  # the real step gives them
            copied = shapes_of(model, shapes, shapes.copies)
            (surgery,) = surgeries_in(copied)
            for way in Way:
                try:
                    surgery.change(self_check="never", **way.options)
                    on_host_without_data(copied)
                    with operators:
                        step, drawn = metered(copied, inputs, shapes)
                except (SurgeryError, PlanningError) as error:
                    if way is Way.NOTHING_KEPT:
                        raise
                    cause = error.__cause__
                    costs.append(cls(way, math.inf, 0, str(cause if isinstance(cause, SurgeryError) else error)))
                    continue
                explained = explanation_of(copied, step, drawn, training)
                moved = 0 if surgery.stats is None else surgery.stats.bytes
                pinned = PinnedPool(surgery.options.offload_pinned).limit if moved else 0
                if moved > pinned:
                    shortage = f"needs {size(moved)} of pinned host memory, and may take {size(pinned)}"
                    costs.append(cls(way, math.inf, 0, shortage))
                    continue
                transfer = moved / device.link
                forward = seconds_of((each for each in step.work if each.phase is StepPhase.FORWARD), device)
                waits = max(transfer - forward, 0.0) + max(transfer - (explained.seconds - forward), 0.0)
                host = _OFFLOAD_HOST_SECONDS * bool(moved) + _SAVE_HOST_SECONDS * bool(surgery.options.save.names)
                seconds = explained.seconds + waits + host * explained.checkpointed
                costs.append(cls(way, seconds, explained.peak_bytes))
        return costs


@dataclass(frozen=True, slots=True)
class FastestChoice:
    """The chosen way, and each way's predicted costs on a `device` with `memory` bytes for the step.

    With a `problem`, nothing could be predicted and nothing is kept.
    """

    way: Way
    costs: tuple[WayCosts, ...] = ()
    device: Device | None = None
    memory: int = 0
    problem: str = ""

    @classmethod
    def of(cls, costs: tuple[WayCosts, ...], device: Device, memory: int) -> FastestChoice:
        """Choose the simplest way within the noise of the fastest that fits; if none fits, that of least memory."""
        possible = [each for each in costs if each.seconds < math.inf]
        fitting = [each for each in possible if each.peak_bytes <= memory * _USED_SHARE]
        fitting = fitting or [min(possible, key=lambda each: each.peak_bytes)]
        least = min(each.seconds for each in fitting)
        way = next(each.way for each in fitting if each.seconds * (1 - _NOISE) <= least)
        return cls(way, costs, device, memory)

    def __str__(self) -> str:
        if self.device is None:
            return f"{self.way}, as no way could be predicted: {self.problem}"
        most = int(self.memory * _USED_SHARE)
        fits = any(each.peak_bytes <= most for each in self.costs if not each.problem)
        why = f"the simplest within {_NOISE:.0%} of the fastest that fits into" if fits else "the smallest: none fits"
        why += f"{'' if fits else ' into'} {size(most)} ({_USED_SHARE:.0%} of {size(self.memory)})"
        rows = [
            (each.way, each.problem or f"{each.seconds:.3g} s", "" if each.problem else size(each.peak_bytes))
            for each in self.costs
        ]
        lines = text_table(("way", "a step at the least", "peak"), rows)
        by = f"by the figures of {self.device.name} ({self.device.source}) and the sizes of the first batch"
        return "\n".join([f"{self.way}: {why}", *lines, by])


def wrap_fastest(model: nn.Module, *, device: str | None = None, **options: Any) -> FastestWrap:
    """Make gradient checkpointing work on `model` in the way predicted to be the fastest on this card.

    Blocks are checkpointed as by `wrap_blocks(model)` until the first batch. Before that batch runs, a step of its
    sizes is metered on shapes with each of these ways, which takes seconds, once:

    - nothing is kept;
    - the blocks' inputs are kept in host memory: `offload="cpu"`;
    - the results of attention are kept there too: `save="attention", offload="cpu", save_offload=True`;
    - the results of attention are kept on the device: `save="attention"`.

    Of those that fit into nine tenths of the available memory, with the state of AdamW, and into pinned host memory,
    the first whose time is within 5 % of the least is taken; if none fits, the one with the lowest peak. The choice
    stays, whatever the sizes of later batches. Ranks choose together in DistributedDataParallel, by the slowest and
    fullest; several ranks without it keep nothing, and so do models compiled by torch. If nothing can be predicted, a
    SurgeryWarning says why.

    Args:
        model: as in `wrap_blocks`.
        device: whose figures are used, as in `plan`; by default the card that the model is on, found by its name.
        options: those of `wrap_blocks`, except `offload`, `save` and `save_offload`.

    Returns:
        The change, whose `choice` gives the chosen way and the costs of each. Print it, `undo()` it, or use it in a
            `with`. A second call on the same model chooses anew at the next batch.

    Raises:
        PlanningError: there is no such device.
        SurgeryError: an option is one that `wrap_fastest` chooses, or as in `wrap_blocks`.
    """
    figures = None if device is None else Device.of(device)
    if given := [name for name in CHOSEN_OPTIONS if name in options]:
        raise SurgeryError(f"wrap_fastest chooses {listed(CHOSEN_OPTIONS)} by itself: leave out {listed(given)}")
    return FastestWrap(wrap_blocks(model, **options), figures)


class FastestWrap(FirstBatch):
    """A surgery whose way to checkpoint is chosen at the first batch, until `undo`; also a context manager.

    `surgery` is that of `wrap_blocks`; `choice` is None until the first batch. `tell` is called with the choice in one
    line.
    """

    def __init__(
        self, surgery: Surgery, device: Device | None = None, tell: Callable[[str], object] | None = None
    ) -> None:
        self.surgery = surgery
        self.choice: FastestChoice | None = None
        self._device, self._tell = device, tell
        super().__init__(surgery.model)  # after the surgery's hooks, which the choice replaces

    def __str__(self) -> str:
        waits = f"{Way.NOTHING_KEPT}, until a batch trains uncompiled (of several ranks, in DistributedDataParallel)"
        return f"{self.surgery}\n{self.choice or waits}"

    @property
    def undone(self) -> bool:
        """Whether the surgery was undone."""
        return self.surgery.undone

    def undo(self) -> None:
        """Restore the model as it was before.

        Raises:
            SurgeryError: as in `Surgery.undo`.
        """
        self.surgery.undo()
        self._handle.remove()

    def begin(self, model: nn.Module, inputs: Mapping[str, Any]) -> None:
        """Choose in the first call that trains.

        Args:
            model: the model whose forward begins.
            inputs: the arguments of that forward, by name.
        """
        wrapper = None if is_alone() else running_wrapper()
        if wrapper is None and not is_alone():
            return  # other ranks may not be in this forward
        if not any(stack.checkpointed for stack in self.surgery.summary().stacks):
            return  # the model is in evaluation mode, or checkpointing is off
        self._handle.remove()
        self.choice = self._choice(inputs, wrapper)
        if self.choice.way is not Way.NOTHING_KEPT:
            self.surgery.change(**self.choice.way.options)
        words = f"{type(model).__name__}: {str(self.choice).splitlines()[0]}"
        if self._tell is not None:
            self._tell(words)
        elif self.choice.problem:
            warnings.warn(words, SurgeryWarning, stacklevel=2)

    def _choice(self, inputs: Mapping[str, Any], wrapper: DistributedDataParallel | None) -> FastestChoice:
        """Choose, together with the other ranks of a wrapper."""
        model, device, memory = self.surgery.model, self._device, math.inf
        try:
            if not isinstance(self.surgery.checkpointing, Checkpointing):
                raise PlanningError("a function of the script checkpoints the blocks")
            if self.surgery.options.offload is not None or self.surgery.options.save.names:
                raise PlanningError("offload or save was given")
            device, memory, others = _card(model, device)
            costs = [replace(each, peak_bytes=each.peak_bytes + others) for each in WayCosts.of(model, inputs, device)]
        except Exception as error:  # whatever the step of a model raises: the training goes on
            problem = str(error) if isinstance(error, PlanningError) else error_line(error)
            costs = [WayCosts(way, math.inf, 0, problem) for way in Way]
        if wrapper is not None:
            # the maximum over the ranks, also of -memory: the least memory counts
            rows = [[-memory, 0.0], *([each.seconds, float(each.peak_bytes)] for each in costs)]
            figures = torch.tensor(rows, dtype=torch.float64, device=next(model.parameters()).device)
            dist.all_reduce(figures, dist.ReduceOp.MAX, wrapper.process_group)
            (most, _), *rows = figures.tolist()
            memory, other = -most, "not on another rank"
            costs = [
                replace(
                    each, seconds=s, peak_bytes=int(peak), problem=each.problem or (other if s == math.inf else "")
                )
                for each, (s, peak) in zip(costs, rows, strict=True)
            ]
        if device is None or costs[0].seconds == math.inf:
            return FastestChoice(Way.NOTHING_KEPT, problem=costs[0].problem)
        return FastestChoice.of(tuple(costs), device, int(memory))


def _card(model: nn.Module, figures: Device | None) -> tuple[Device, int, int]:
    """Return a model's card, the bytes that this process can use there, and those held beside the model.

    Raises PlanningError if the model is on several devices, or no figures are known.
    """
    place = place_of(model)
    if place.type != "cuda":
        if figures is None:
            raise PlanningError(f"the model is on the device {place}, of which no figures are known: name a device")
        return figures, int(figures.memory), 0
    figures = figures or Device.like(torch.cuda.get_device_name(place))
    tensors = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters() if p.grad is not None)]
    others = max(torch.cuda.memory_allocated(place) - held_bytes(tensors), 0)
    return figures, torch.cuda.mem_get_info(place)[0] + torch.cuda.memory_reserved(place), others
