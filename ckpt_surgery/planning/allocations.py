"""Meter one training step: what makes and keeps each allocation, how long it lives, how much each operator does."""

from __future__ import annotations

import os
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from itertools import accumulate
from math import prod
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn

import ckpt_surgery
from ckpt_surgery.measure.meter import Meter, StorageRecord
from ckpt_surgery.planning.devices import Device
from ckpt_surgery.runtime.tools.containers import tensors
from ckpt_surgery.runtime.tools.tensors import is_wrapper, unseen_for
from ckpt_surgery.torch_names import FakeTensor, current_autograd_node, engine, next_sequence_number, tree_leaves

OWN_CODE = (str(Path(torch.__file__).parent), str(Path(ckpt_surgery.__file__).parent))
"""The folders whose code is not a model's."""
_BETWEEN = (str(Path(torch.__file__).parent / "_compile.py"), str(Path(torch.__file__).parent / "_dynamo"))
"""Frames between the call of an operator and its dispatch."""
_KEEPS_LOCALS = sys.version_info < (3, 13)
"""Whether `f_locals` of a frame holds the values that it had until it is read again (PEP 667)."""
_DEVICE = torch.ops.prim.device.default
_WRITES_NOTHING = frozenset({"aten.empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty"})


class StepPhase(StrEnum):
    """The part of a step in which an operator ran."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"


class AllocationKind(StrEnum):
    """The kinds of tensors in a step."""

    KEPT = "kept for the backward"
    TEMPORARY = "temporary in the forward"
    RECOMPUTED = "recomputed"
    BACKWARD = "made in the backward"
    GRADIENT = "gradients of parameters"
    GATHERED = "gathered from ranks, or on the way to them"


@dataclass(frozen=True, slots=True)
class ModulePlace:
    """Where a model's code runs: the full name of the innermost module, and the line (`modeling_llama.py:181`).

    `line` is that of the innermost code outside torch and this package. Either is empty if there is none.
    """

    module: str = ""
    line: str = ""


@dataclass(frozen=True, slots=True)
class Allocation:
    """A storage that a step allocated.

    Attributes:
        bytes: size of the whole storage.
        dtype: of the tensor it was made with, such as "bfloat16".
        shape: of that tensor.
        operator: what made it, such as "aten.mm".
        place: where the operator ran; in the backward, the place of its forward.
        phase: when the operator ran.
        kind: what the storage is to the step.
        keeper: the operator that saved it for the backward; empty if autograd did not save it.
        kept_at: where that operator ran.
        born: the number of the operator that made it; operators are numbered from 1.
        last: the number of the last operator after which it was alive.
    """

    bytes: int
    dtype: str
    shape: tuple[int, ...]
    operator: str
    place: ModulePlace
    phase: StepPhase
    kind: AllocationKind
    keeper: str
    kept_at: ModulePlace
    born: int
    last: int


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """One operator: its module, the part of the step, its floating-point operations and the bytes it moves.

    `module` is empty in the backward, except in recomputes.
    """

    module: str
    phase: StepPhase
    flops: int
    bytes: int
    at: int = 0
    """Its number among all operators of the step, from 1."""


@dataclass(frozen=True, slots=True)
class StepAllocations:
    """The allocations of a step.

    `kept_bytes` are those alive when the backward begins, without the loss. `operators` counts all operators that ran,
    `backward_at` those in the forward. FLOPs are as torch counts them.
    """

    allocations: tuple[Allocation, ...]
    kept_bytes: int
    operators: int
    backward_at: int
    forward_flops: int
    backward_flops: int
    work: tuple[OperatorWork, ...]
    """Each operator that computes or moves anything, in execution order."""
    input_bytes: int = 0
    """The bytes of the step's inputs, which it did not allocate."""

    @property
    def alive_bytes(self) -> list[int]:
        """The bytes that the step allocated and that are alive after each operator."""
        return self.curves()[1]

    def curves(self) -> tuple[dict[AllocationKind, list[int]], list[int]]:
        """Return the bytes of each kind, and of all kinds, that are alive after each operator."""
        changes = {kind: [0] * (self.operators + 1) for kind in AllocationKind}
        for allocation in self.allocations:
            changes[allocation.kind][allocation.born - 1] += allocation.bytes
            changes[allocation.kind][allocation.last] -= allocation.bytes
        curves = {kind: list(accumulate(change))[: self.operators] for kind, change in changes.items()}
        return curves, [sum(values) for values in zip(*curves.values(), strict=True)]

    def is_same_step(self, theirs: StepAllocations) -> bool:
        """Tell whether two records of a step say the same, in whatever order operators are listed."""
        totals = [replace(each, allocations=(), work=()) for each in (self, theirs)]
        same_work = Counter(self.work) == Counter(theirs.work)
        return totals[0] == totals[1] and same_work and Counter(self.allocations) == Counter(theirs.allocations)


class AllocationMeter(Meter):  # type: ignore[no-untyped-call]
    """A `Meter` that records every storage; `names` maps the modules of a model to their names."""

    def __init__(self, names: Mapping[nn.Module, str]) -> None:
        super().__init__()
        self._names = names
        self._drafts: dict[int, Allocation] = {}  # by serial number; their kind is told by `result`
        self._kept: set[int] = set()  # the serial numbers of those alive when the backward begins
        self._freed_at: dict[int, int] = {}  # by serial number
        self._forward_places: list[tuple[int, ModulePlace]] = []  # the first node of the graph made at a place
        self._latest: tuple[Any, Any] = (None, None)  # an operator, and where it was called
        self._unassigned: list[int] = []  # saved by the operator that comes next
        self._backward_began = 0
        self._work: list[OperatorWork] = []
        self._read: set[int] = set()  # the ids of codes
        self._running: tuple[ModulePlace, bool] | None = None  # where the present operator runs, once somebody asked

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(map(is_wrapper, types)):
            return NotImplemented
        if _KEEPS_LOCALS:
            self._forget_old_locals()
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # asked for often
        if func.namespace == "prim":  # a question, such as for the device, to a tensor without data
            return func(*args, **(kwargs or {}))
        for serial in self._unassigned:
            self._drafts[serial] = replace(self._drafts[serial], keeper=str(func._overloadpacket))
        self._unassigned.clear()
        self._latest = (func, _call_site())
        self._running = None
        return super().__torch_dispatch__(func, types, args, kwargs)

    def saved(self, tensor: Tensor) -> Tensor:
        """Note that autograd keeps `tensor`: a pack hook of `saved_tensors_hooks`.

        Autograd packs an operator's arguments before the operator runs, and its results afterwards.
        """
        records = list(self._tracked([tensor]))
        if not records:
            return tensor  # a parameter or a view of one, which no operator has just made
        for serial in (record.serial for record in records):
            draft = self._drafts[serial]
            if draft.keeper or self._backward_began:
                continue
            latest, site = self._latest
            is_result = draft.born == self._operators and site == _call_site()
            keeper = str(latest._overloadpacket) if is_result else ""
            self._drafts[serial] = replace(draft, keeper=keeper, kept_at=self._here()[0])
            self._unassigned += [] if is_result else [serial]
        with unseen_for(tensor):
            return tensor.detach()  # a result would keep the operator that keeps it

    def start_backward(self, loss: Tensor) -> None:
        """Mark the end of the forward, as `Meter` does."""
        super().start_backward(loss)
        own = {record.serial for record in self._tracked([loss])}
        self._kept = {record.serial for record in self._live.values()} - own
        self._backward_began = self._operators

    def result(self, gradients: Iterator[Tensor]) -> StepAllocations:
        """Return what the step allocated; `gradients` are the parameters' gradients as they are now."""
        ours = {record.serial for record in self._tracked(gradients)}
        return StepAllocations(
            allocations=tuple(self._allocation(serial, serial in ours) for serial in self._drafts),
            kept_bytes=self.kept_bytes,
            operators=self._operators,
            backward_at=self._backward_began,
            forward_flops=self.flops.forward,
            backward_flops=self.flops.backward,
            work=tuple(self._work),
        )

    def _find_leaks(self, args: tuple[Any, ...]) -> None:
        """Do nothing: blocks are not marked here."""

    def _count(self, func: Any, args: tuple[Any, ...], options: Mapping[str, Any], result: Any) -> None:
        before = self.flops.forward + self.flops.backward
        super()._count(func, args, options, result)
        flops, moved = self.flops.forward + self.flops.backward - before, moved_bytes(func, args, options, result)
        if flops or moved:
            place, phase = self._running_now()
            self._work.append(OperatorWork(place.module, phase, flops, moved, self._operators + 1))

    def _allocated(self, record: StorageRecord, func: Any, tensor: Tensor) -> None:
        place, phase = self._running_now()
        if phase is StepPhase.BACKWARD:
            place = self._forward_place()
        else:
            self._note_node(place)
        self._drafts[record.serial] = Allocation(
            bytes=record.bytes,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            operator=str(func._overloadpacket),
            place=place,
            phase=phase,
            kind=AllocationKind.TEMPORARY,
            keeper="",
            kept_at=ModulePlace(),
            born=self._operators,
            last=0,
        )

    def _running_now(self) -> tuple[ModulePlace, StepPhase]:
        """Return where the operator being counted runs, and in which part of the step."""
        if self._running is None:
            self._running = self._here()
        place, in_module = self._running
        if not self._backward_began:
            return place, StepPhase.FORWARD
        return place, StepPhase.RECOMPUTE if in_module else StepPhase.BACKWARD

    def _freed(self, record: StorageRecord) -> None:
        self._freed_at[record.serial] = self._operators

    def _allocation(self, serial: int, is_gradient: bool) -> Allocation:
        draft = self._drafts[serial]
        if is_gradient:
            kind = AllocationKind.GRADIENT
        elif draft.phase is StepPhase.FORWARD:
            kind = AllocationKind.KEPT if serial in self._kept else AllocationKind.TEMPORARY
        else:
            kind = AllocationKind.RECOMPUTED if draft.phase is StepPhase.RECOMPUTE else AllocationKind.BACKWARD
        return replace(draft, kind=kind, last=self._freed_at.get(serial, self._operators))

    def _here(self) -> tuple[ModulePlace, bool]:
        """Return the place that runs now, and whether a module of the model runs at all."""
        module, line = "", ""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and not (module and line) and (code := frame.f_code) is not run_metered.__code__:
            file, is_method = _known_code(code)
            if file and not line:
                line = f"{file}:{frame.f_lineno}"
            if is_method and not module:
                self._read.add(id(code))
                owner = frame.f_locals.get("self")
                module = self._names.get(owner, "") if isinstance(owner, nn.Module) else ""
            frame = frame.f_back
        return ModulePlace(module, line), bool(module)

    def _forget_old_locals(self) -> None:
        """Refresh the locals of frames that `_here` has read, so that they hold no tensor longer than the code."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and (code := frame.f_code) is not run_metered.__code__:
            if id(code) in self._read:
                frame.f_locals  # noqa: B018
            frame = frame.f_back

    def _note_node(self, place: ModulePlace) -> None:
        """Remember where the newest node of the graph was made; an operator's own node is made before it runs."""
        node = next_sequence_number() - 1
        if not self._forward_places or (node > self._forward_places[-1][0] and place != self._forward_places[-1][1]):
            self._forward_places.append((node, place))

    def _forward_place(self) -> ModulePlace:
        """Return the place of the forward whose backward runs now."""
        node = current_autograd_node()
        if node is None:
            return ModulePlace()
        index = bisect_right(self._forward_places, node._sequence_nr(), key=lambda entry: entry[0])
        return self._forward_places[index - 1][1] if index else ModulePlace()


def run_metered(
    model: nn.Module, arguments: tuple[tuple[Any, ...], Mapping[str, Any]], loss: Callable[[Any], Tensor]
) -> StepAllocations:
    """Run a forward and backward of `model`, and return its allocations. The gradients stay on the model.

    `arguments` are the positional and keyword arguments; `loss` turns the output into a scalar. Raises what the model
    raises.
    """
    meter = AllocationMeter({module: name for name, module in model.named_modules()})
    positional, named = arguments
    with meter, torch.enable_grad():
        with torch.autograd.graph.saved_tensors_hooks(meter.saved, lambda saved: saved):
            output = model(*positional, **named)
            value = loss(output)
            del output
        meter.start_backward(value)
        engine.run_backward(  # unlike `value.backward()`, it keeps torch function modes on for recomputes
            (value,), (torch.ones_like(value),), False, False, (), allow_unreachable=True, accumulate_grad=True
        )
        del value
    given = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors(arguments)}
    result = meter.result(p.grad for p in model.parameters() if p.grad is not None)
    return replace(result, input_bytes=sum(given.values()))


def _call_site() -> tuple[Any, int]:
    """Return the instruction that called the operator being dispatched, or saved for."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame = frame.f_back
    return (None, 0) if frame is None else (frame.f_code, frame.f_lasti)


@cache
def _known_code(code: CodeType) -> tuple[str, bool]:
    """Return the file name of a model's code, empty for other code, and whether the code has a `self`."""
    file = "" if code.co_filename.startswith((*OWN_CODE, "<")) else os.path.basename(code.co_filename)
    return file, code.co_varnames[:1] == ("self",)


def seconds_of(work: Iterable[OperatorWork], device: Device) -> float:
    """Return the least seconds that operators take on a device: to compute at its peak rate, or to move bytes.

    Each counts with the longer of the two, one after another; it reads its arguments from memory and writes its
    results. Launches, communication between ranks, and caches that hold an argument are not counted.
    """
    return sum(max(each.flops / device.flops, each.bytes / device.bandwidth) for each in work)


def moved_bytes(func: Any, args: tuple[Any, ...], options: Mapping[str, Any], result: Any) -> int:
    """Count the bytes that an operator reads and writes: 0 for a view, and for an operator that only allocates."""
    if _moves_nothing(func):
        return 0
    moved = 0
    for each in tree_leaves((args, dict(options), result)):
        if isinstance(each, Tensor):  # where all rows are the same one, as `expand` makes them, one counts
            dimensions = zip(each.shape, each.stride(), strict=True)
            moved += prod(length if stride else min(length, 1) for length, stride in dimensions) * each.itemsize
    return moved


@cache
def _moves_nothing(func: Any) -> bool:
    schema = func._schema
    is_view = all(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns)
    return (is_view and not schema.is_mutable) or str(func._overloadpacket) in _WRITES_NOTHING
