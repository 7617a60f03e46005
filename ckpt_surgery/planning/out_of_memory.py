"""Explain a step that ran out of memory: what it held, what each remedy would save, and what to run next.

A similar step is metered on shapes, with the batch that failed: nothing is computed, and no device memory is used.
What lives from step to step was counted when the error was raised.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from ckpt_surgery.errors import PlanningError, SurgeryWarning
from ckpt_surgery.guarding.failed_step import FailedPart, FailedStep, Held
from ckpt_surgery.long_sequences.fused_head import fuse_loss
from ckpt_surgery.long_sequences.long_context import long_context
from ckpt_surgery.long_sequences.tiled import tile_mlp
from ckpt_surgery.measure.arguments import positional_key
from ckpt_surgery.measure.generators import random_state_kept
from ckpt_surgery.measure.loss import scalar
from ckpt_surgery.planning.allocations import Allocation, AllocationKind, StepAllocations, StepPhase
from ckpt_surgery.planning.answer import RANK
from ckpt_surgery.planning.devices import Device, segment_bytes
from ckpt_surgery.planning.explain import explanation_of, metered, without_values
from ckpt_surgery.planning.explanation import Explanation
from ckpt_surgery.planning.figures import Holder
from ckpt_surgery.planning.lora import add_lora, head_of, is_mostly_frozen
from ckpt_surgery.planning.planner import tiling_of
from ckpt_surgery.planning.shapes import ShapesOnly, shapes_of
from ckpt_surgery.planning.text import Hint, Remedy
from ckpt_surgery.planning.training import OPTIMIZER_CLASSES, Optimizer, TrainingSetup
from ckpt_surgery.runtime.blocks.discovery import find_blocks, nearest
from ckpt_surgery.runtime.surgery.wrap import wrap_blocks
from ckpt_surgery.runtime.tools.containers import tensors
from ckpt_surgery.text import aligned, error_line, size, text_table

_PATIENCE = 30.0
"""After this many seconds, no further lever is metered."""
_LEAST_SHARE = 0.01
"""A lever is named if it saves at least this share of the peak."""
_MOST_HOLDERS = 5
_ROUNDED = 0.005
"""The relative error of a size in torch's message, which has two decimals."""


class Alive(StrEnum):
    """The tensors that a step has made and still holds."""

    BLOCKS = "kept by blocks for the backward"
    OUTSIDE = "kept outside of blocks"
    RECOMPUTE = "recomputed in one block"
    LOSS = "logits and loss"
    WORKING = "being computed"


class Lever(StrEnum):
    """A change that lowers the peak of a step."""

    CHECKPOINT = "wrap_blocks(model)"
    OFFLOAD = 'wrap_blocks(model, offload="cpu")'
    TILE_MLP = "tile_mlp(mlps)"
    FUSED_LOSS = "fuse_loss(model)"
    LONG_CONTEXT = "long_context(model)"
    LORA = f"LoRA of rank {RANK}"
    ADAM_8BIT = "AdamW in 8 bits"


_LEVERS = {Remedy.CHECKPOINT: Lever.CHECKPOINT, Remedy.FUSED_LOSS: Lever.FUSED_LOSS, Remedy.TILE_MLP: Lever.TILE_MLP}


@dataclass(frozen=True, slots=True)
class Saving:
    """The bytes that a lever takes off the peak, and the peak left; without `metered`, the most it may take."""

    lever: Lever
    bytes: int
    peak_bytes: int
    metered: bool = True


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A step that ran out of memory, explained. Sizes are bytes.

    Attributes:
        model: the class of the model; empty if none was trained before.
        part: what was running.
        said: where memory ran out, in a sentence.
        alive: bytes alive then, by kind: `Held` as counted, `Alive` as metered on shapes.
        holders: what the step had made, the largest first.
        allocated: what torch had allocated on the device; None if it counts nothing there.
        reserved: what torch had reserved there.
        room: what this process may use there.
        peak_bytes: the peak of a whole step, 0 if unknown.
        peak_place: where the peak is.
        savings: what levers save of the peak, the largest first.
        notes: the assumptions behind the figures, and what is not known.
    """

    model: str
    part: FailedPart
    said: str
    alive: Mapping[str, int]
    holders: tuple[Holder, ...] = ()
    allocated: int | None = None
    reserved: int | None = None
    room: int | None = None
    peak_bytes: int = 0
    peak_place: str = ""
    savings: tuple[Saving, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows = [(kind, size(held)) for kind, held in self.alive.items() if held]
        if rows:
            rows.append(("in all", size(sum(self.alive.values()))))
        if self.allocated is not None:
            rows.append(("allocated by torch", size(self.allocated)))
            rows.append(("reserved by torch", size(self.reserved or 0)))
        lines = [self.said, *aligned(rows)]
        if self.holders:
            made = [
                (size(h.bytes), f"{h.count:,}", h.module or "(loss)", f"{h.dtype} [{', '.join(map(str, h.shape))}]")
                for h in self.holders
            ]
            lines += ["Most of what the step had made:"]
            lines += text_table(("bytes", "count", "module", "tensor"), made, right="bytes")
        if self.peak_bytes:
            room = "" if self.room is None else f" This process may have {size(self.room)}."
            peak = f"A whole step of this batch holds {size(self.peak_bytes)} at its peak, {self.peak_place}."
            lines.append(peak + room)
        if self.savings:
            levers = [
                (str(each.lever), f"{'' if each.metered else 'at most '}{size(each.bytes)}", size(each.peak_bytes))
                for each in self.savings
            ]
            lines += text_table(("what would help", "saves", "peak"), levers)
        return "\n".join([*lines, *self.notes])

    def to_dict(self) -> dict[str, Any]:
        """Return the same as plain data."""
        return asdict(self)


def explain_failed(failed: FailedStep) -> OutOfMemory:
    """Meter a step like the failed one, and what each lever saves. The model is only read; nothing is raised."""
    alive: dict[str, int] = dict(failed.held.items())
    known = OutOfMemory(
        "" if failed.model is None else type(failed.model).__name__,
        failed.part,
        f"{str(failed).partition(', with ')[0]}. Alive then:" if failed.held else f"{failed}.",
        alive,
        allocated=failed.allocated,
        reserved=failed.reserved,
        room=failed.room,
    )
    if failed.model is None:
        return known
    try:
        with random_state_kept():
            copied, step, drawn, own_loss = _metered(failed, lambda model, shapes: None)
    except Exception as error:  # whatever a step of the model raises
        why = str(error) if isinstance(error, PlanningError) else error_line(error)
        return replace(known, notes=(f"What the step had made is not known: {why}.",))
    training, notes = _training(failed)
    whole = explanation_of(copied, step, drawn, training)
    in_8_bits = explanation_of(copied, step, drawn, replace(training, optimizer=Optimizer.ADAMW_8BIT))
    alive_then = _alive_at_error(step, failed)
    names = frozenset(block.name for block in find_blocks(copied))
    output = head_of(copied)
    head = next((name for name, module in copied.named_modules() if module is output), "")
    sums: Counter[str] = Counter()
    for each in alive_then:
        sums[_kind(each, bool(nearest(each.place.module, names)), head)] += each.bytes
    alive[Held.GRADIENTS] = max(alive[Held.GRADIENTS], sums.pop(Held.GRADIENTS, 0))
    if not own_loss:
        notes.append("A loss that the script computes after the model's forward is not counted.")
    return replace(
        known,
        alive={kind: held for kind in (*Held, *Alive) if (held := (alive | sums).get(kind))},
        holders=Holder.grouped(each for each in alive_then if each.kind is not AllocationKind.GRADIENT)[
            :_MOST_HOLDERS
        ],
        peak_bytes=whole.peak_bytes,
        peak_place=whole.peak.place,
        savings=_savings(failed, whole, in_8_bits, training),
        notes=tuple(notes),
    )


def _metered(
    failed: FailedStep, change: Callable[[nn.Module, ShapesOnly], object]
) -> tuple[nn.Module, StepAllocations, int, bool]:
    """Copy the failed model without data, change the copy, and meter a step of it.

    Also return how many of its operators were given drawn values, and whether the model computes its own loss. Raises
    whatever the copy or its step raises.
    """
    arguments = None if failed.call is None else failed.call.arguments()
    if failed.model is None or failed.call is None or failed.device is None or arguments is None:
        raise PlanningError("what the model was called with is gone")
    shapes = ShapesOnly()
    copied = shapes_of(failed.model, shapes, shapes.copies)
    change(copied, shapes)
    without_values(copied)
    own: list[bool] = []

    def loss(output: Any) -> Tensor:
        given: Any = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", output)
        own.append(isinstance(given, Tensor) and given.requires_grad and given.numel() == 1)
        if own == [True]:
            return scalar(given)
        sums = [each.sum() for each in tensors(output) if each.requires_grad]  # they keep nothing
        return torch.stack([each.to(sums[0]) for each in sums]).sum()

    inputs = {positional_key(place): value for place, value in enumerate(arguments[0])} | arguments[1]
    with failed.call.autocast(failed.device.type), warnings.catch_warnings():
        warnings.simplefilter("ignore", SurgeryWarning)  # the model's own step gave them
        step, drawn = metered(copied, inputs, shapes, loss)
    return copied, step, drawn, own == [True]


def _training(failed: FailedStep) -> tuple[TrainingSetup, list[str]]:
    """Return the optimizer whose state is counted and the card, with notes on what that assumes."""
    name, notes = failed.optimizer.lower(), []
    if name == "sgd":
        kind = Optimizer.SGD_MOMENTUM if failed.defaults.get("momentum") else Optimizer.SGD
    else:
        kind = OPTIMIZER_CLASSES.get(name, Optimizer.ADAMW)
    if name not in (*OPTIMIZER_CLASSES, "sgd"):
        lacking = f"No state is known of {failed.optimizer}" if failed.optimizer else "No optimizer was there so far"
        notes.append(f"{lacking}: the peak counts that of AdamW.")
    foreach, fused = failed.defaults.get("foreach"), failed.defaults.get("fused")
    on_cuda = failed.device is not None and failed.device.type == "cuda"
    if failed.part is FailedPart.OPTIMIZER and not fused and (foreach or (foreach is None and on_cuda)):
        notes.append("It updates all parameters at once, which takes about as much again as they do: foreach=False.")
    device: Device | None = None
    if on_cuda:
        with suppress(Exception):  # no figures are known of the card
            device = Device.like(torch.cuda.get_device_name(failed.device))
    return TrainingSetup(kind, device=device), notes


def _alive_at_error(step: StepAllocations, failed: FailedStep) -> list[Allocation]:
    """List what the metered step holds at the allocation like the one that failed, in the same part and module.

    That is the first allocation of the size in torch's message that takes the step to a new high; without one, that
    after which the step holds the most.
    """
    phases: Container[StepPhase] = ()
    if failed.part is FailedPart.FORWARD:
        phases = (StepPhase.FORWARD,)
    elif failed.part is FailedPart.BACKWARD:
        phases = (StepPhase.RECOMPUTE,) if failed.recomputing else (StepPhase.BACKWARD, StepPhase.RECOMPUTE)
    ran = [each for each in step.allocations if each.phase in phases]
    module = failed.module
    in_module = [each for each in ran if each.place.module == module]
    below = [each for each in ran if module and each.place.module.startswith(f"{module}.")]
    if not (ran := in_module or below or ran):
        return []
    curve = step.alive_bytes
    highest = list(accumulate(curve, max))
    matching = [each for each in ran if failed.asked and abs(1 - segment_bytes(each.bytes) / failed.asked) < _ROUNDED]
    matching = matching or [each for each in ran if failed.asked and abs(1 - each.bytes / failed.asked) < _ROUNDED]
    rising = [each.born for each in matching if curve[each.born - 1] == highest[each.born - 1]]
    number = min(rising) if rising else max((each.born for each in ran), key=lambda born: curve[born - 1])
    return [each for each in step.allocations if each.born < number <= each.died]


def _kind(each: Allocation, in_block: bool, head: str) -> str:
    match each.kind:
        case AllocationKind.GRADIENT:
            return Held.GRADIENTS
        case AllocationKind.RECOMPUTED:
            return Alive.RECOMPUTE
        case _ if not in_block and each.place.module in ("", head):
            return Alive.LOSS
        case AllocationKind.KEPT:
            return Alive.BLOCKS if in_block else Alive.OUTSIDE
        case _:
            return Alive.WORKING


def _savings(
    failed: FailedStep, whole: Explanation, in_8_bits: Explanation, training: TrainingSetup
) -> tuple[Saving, ...]:
    """List what each lever saves of the peak, metered until `_PATIENCE` runs out."""
    begun, most = time.monotonic(), whole.peak_bytes
    peaks: dict[Lever, int] = {}
    if training.optimizer is Optimizer.ADAMW:
        peaks[Lever.ADAM_8BIT] = in_8_bits.peak_bytes
    for lever, change in _changes(failed, whole):
        if time.monotonic() - begun > _PATIENCE:
            break
        with suppress(Exception):  # it cannot be done to this model
            copied, step, drawn, _ = _metered(failed, change)
            peaks[lever] = explanation_of(copied, step, drawn, training).peak_bytes
    savings = [Saving(lever, most - peak, peak) for lever, peak in peaks.items()]
    for hint in Hint.of(whole) if time.monotonic() - begun > _PATIENCE else ():
        hinted = _LEVERS.get(hint.remedy)
        if hinted is not None and hinted not in peaks:
            savings.append(Saving(hinted, hint.bytes, most - hint.bytes, metered=False))
    worth = [saving for saving in savings if saving.bytes >= _LEAST_SHARE * most]
    return tuple(sorted(worth, key=lambda saving: -saving.bytes))


def _changes(
    failed: FailedStep, whole: Explanation
) -> Iterator[tuple[Lever, Callable[[nn.Module, ShapesOnly], object]]]:
    """Yield levers for the model as it stands, with functions that apply them: offload only if it is not on a CPU."""

    def tile(model: nn.Module, _: ShapesOnly) -> None:
        tiling = tiling_of(model, [block.name for block in find_blocks(model)])
        tile_mlp(list(map(model.get_submodule, tiling["tiled"])), shard_size=tiling["shard_size"])

    to_host = failed.device is not None and failed.device.type != "cpu"
    if whole.checkpointed < whole.blocks:
        yield Lever.CHECKPOINT, lambda model, _: wrap_blocks(model, self_check="never")
    if to_host:
        yield Lever.OFFLOAD, lambda model, _: wrap_blocks(model, offload="cpu", self_check="never")
    yield Lever.FUSED_LOSS, lambda model, _: fuse_loss(model)
    if 0 < whole.blocks == whole.checkpointed:
        yield Lever.TILE_MLP, tile
    if to_host:
        yield Lever.LONG_CONTEXT, lambda model, _: long_context(model)
    if failed.model is not None and not is_mostly_frozen(failed.model):
        yield Lever.LORA, lambda model, shapes: add_lora(model, RANK, shapes)
