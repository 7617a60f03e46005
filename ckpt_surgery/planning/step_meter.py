"""Run one training step, and record each allocation in it and the work of each operator."""

from __future__ import annotations

import os
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn

from ckpt_surgery.measure.meter import Meter, StorageRecord
from ckpt_surgery.measure.own_checkpoints import OURS, TORCH
from ckpt_surgery.planning.allocations import (
    Allocation,
    AllocationKind,
    ModulePlace,
    OperatorWork,
    StepAllocations,
    StepPhase,
)
from ckpt_surgery.planning.roofline import moved_bytes
from ckpt_surgery.runtime.tools.containers import tensors
from ckpt_surgery.runtime.tools.tensors import is_wrapper, unseen_for
from ckpt_surgery.torch_names import FakeTensor, current_autograd_node, engine, next_sequence_number

_DISPATCH = (f"{TORCH}_compile.py", f"{TORCH}_dynamo")
"""Files of torch whose frames lie between the call of an operator and its dispatch."""
_KEEPS_LOCALS = sys.version_info < (3, 13)
"""Whether a frame's `f_locals`, once read, keeps its values alive until it is read again (as before PEP 667)."""
_DEVICE = torch.ops.prim.device.default


class AllocationMeter(Meter):  # type: ignore[no-untyped-call]
    """A `Meter` that also records every storage; `names` maps the modules of a model to their names."""

    def __init__(self, names: Mapping[nn.Module, str]) -> None:
        super().__init__()
        self._names = names
        self._drafts: dict[int, Allocation] = {}  # by serial number; `result` fills in their kinds
        self._kept: set[int] = set()  # serial numbers of what is alive as the backward begins
        self._freed_at: dict[int, int] = {}  # by serial number
        self._forward_places: list[tuple[int, ModulePlace]] = []  # the first node of the graph made at a place
        self._latest: tuple[Any, Any] = (None, None)  # the latest operator, and its call site
        self._unassigned: list[int] = []  # serial numbers of what the next operator saves
        self._backward_began = 0  # the number of operators in the forward, once it has ended
        self._work: list[OperatorWork] = []
        self._read: set[int] = set()  # ids of the code objects whose locals `_here` has read
        self._running: tuple[ModulePlace, bool] | None = None  # of the current operator, found when needed

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(map(is_wrapper, types)):
            return NotImplemented
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # asked for often
        if func.namespace == "prim":  # a question, such as for the device, to a tensor without data
            return func(*args, **(kwargs or {}))
        if _KEEPS_LOCALS:
            self._forget_old_locals()
        for serial in self._unassigned:
            self._drafts[serial] = replace(self._drafts[serial], keeper=str(func._overloadpacket))
        self._unassigned.clear()
        self._latest = (func, _call_site())
        self._running = None
        return self._metered(func, args, kwargs or {})

    def saved(self, tensor: Tensor) -> Tensor:
        """Note that autograd keeps `tensor`: a pack hook of `saved_tensors_hooks`.

        Autograd packs an operator's arguments before the operator runs, and its results afterwards.
        """
        records = list(self._tracked([tensor]))
        if not records:
            return tensor  # a parameter or a view of one: no operator of this step allocated it
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
            return tensor.detach()  # the result itself refers to the node that saves it: a cycle

    def start_backward(self, loss: Tensor) -> None:
        """Mark the end of the forward, as `Meter` does."""
        super().start_backward(loss)
        of_loss = {record.serial for record in self._tracked([loss])}
        self._kept = {record.serial for record in self._live.values()} - of_loss
        self._backward_began = self._operators

    def result(self, gradients: Iterator[Tensor]) -> StepAllocations:
        """Return what the step allocated; `gradients` are the parameters' gradients as they are now."""
        of_gradients = {record.serial for record in self._tracked(gradients)}
        return StepAllocations(
            allocations=tuple(self._allocation(serial, serial in of_gradients) for serial in self._drafts),
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
            died=0,
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
        return replace(draft, kind=kind, died=self._freed_at.get(serial, self._operators))

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
        """Refresh the `f_locals` that `_here` has read, so that they keep no tensor longer than the code does."""
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
    """Return the code and the instruction that called the operator being dispatched, or for which autograd saves."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_DISPATCH):
        frame = frame.f_back
    return (None, 0) if frame is None else (frame.f_code, frame.f_lasti)


@cache
def _known_code(code: CodeType) -> tuple[str, bool]:
    """Return the file name of a model's code, empty for other code, and whether the code has a `self`."""
    file = "" if code.co_filename.startswith((TORCH, OURS, "<")) else os.path.basename(code.co_filename)
    return file, code.co_varnames[:1] == ("self",)
