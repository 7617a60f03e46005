"""Describe a step that ended with torch.OutOfMemoryError: where, what was alive, and the model's arguments.

Of a healthy step only weak references to its inputs are kept. Of a failed one the model is kept, but no frame of the
traceback and nothing that the step has made.
"""

from __future__ import annotations

import gc
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from traceback import walk_tb
from types import FrameType
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ckpt_surgery.guarding.memory import allocated
from ckpt_surgery.measure.casting import autocast_of
from ckpt_surgery.measure.own_checkpoints import OURS, TORCH
from ckpt_surgery.runtime.tools.containers import PLAIN, tensors
from ckpt_surgery.runtime.tools.tensors import inner_tensors, is_differentiable
from ckpt_surgery.text import listed, size, size_in_bytes
from ckpt_surgery.torch_names import MODULE_CALL, FakeTensorMode, tree_leaves, tree_map

_BACKWARD = {torch.autograd.backward.__code__, torch.autograd.grad.__code__}
_MODE_METHODS = ("__torch_dispatch__", "__torch_function__")
_ASKED = re.compile(r"Tried to allocate ([\d.]+ ?\w+)")
_CALLS = count(1)
_Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]


class FailedPart(StrEnum):
    """The part of a step in which memory ran out."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OUTSIDE = "outside"


class Held(StrEnum):
    """The kinds of tensors that live from step to step, or for a whole step."""

    PARAMETERS = "parameters"
    BUFFERS = "buffers"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer state"
    INPUTS = "inputs"


@dataclass(slots=True)
class _SeenTensor:
    """A tensor among a model's arguments; after `keep` it is kept alive if its values may decide sizes."""

    tensor: Callable[[], Tensor | None]
    identity: int
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    def keep(self) -> None:
        kept = self.tensor()
        floats = self.dtype.is_floating_point or self.dtype.is_complex
        self.tensor = (lambda: None) if floats or kept is None else (lambda: kept)

    def rebuilt(self) -> Tensor:
        """Make a tensor like it: floats without data, all else of ones if the original is gone."""
        if self.dtype.is_floating_point or self.dtype.is_complex:
            with FakeTensorMode():
                like = torch.empty(self.shape, dtype=self.dtype, device=self.device)
                return like.requires_grad_(self.requires_grad)
        kept = self.tensor()
        return torch.ones(self.shape, dtype=self.dtype, device=self.device) if kept is None else kept


class LastCall:
    """The last call of a model that trains."""

    def __init__(self, model: nn.Module) -> None:
        self.model = ref(model)
        self.number = 0
        self._arguments: Any = None
        self._autocast: tuple[bool, torch.dtype | None] = (False, None)

    def note(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note a call that is ending."""
        if torch.is_grad_enabled() and (model := self.model()) is not None:
            self.note_arguments(args, kwargs)
            self.note_autocast(model)

    def note_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note the arguments of a call without keeping them alive."""
        self.number = next(_CALLS)
        self._arguments = tree_map(_seen, (args, dict(kwargs)))

    def note_autocast(self, model: nn.Module) -> None:
        """Note the current autocast."""
        self._autocast = autocast_of(model)

    def keep(self) -> None:
        """Keep the inputs alive that `arguments` needs."""
        for each in tree_leaves(self._arguments):
            if isinstance(each, _SeenTensor):
                each.keep()

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Return arguments like those of the call; None if some are gone and nothing can replace them."""
        lost = []

        def rebuilt(seen: Any) -> Any:
            if not isinstance(seen, ref):
                return seen.rebuilt() if isinstance(seen, _SeenTensor) else seen
            held = seen()
            lost.extend([seen] if held is None else [])
            return held

        made = tree_map(rebuilt, self._arguments)
        return None if lost or self._arguments is None else made

    def autocast(self, device: str) -> AbstractContextManager[Any]:
        """Return the autocast context of the call."""
        enabled, dtype = self._autocast
        return torch.autocast(device, dtype) if enabled else nullcontext()

    def input_bytes(self, device: torch.device | None) -> int:
        """Return the bytes of the call's inputs on a device."""
        seen = [each for each in tree_leaves(self._arguments) if isinstance(each, _SeenTensor)]
        held = {each.identity: each.shape.numel() * each.dtype.itemsize for each in seen if each.device == device}
        return sum(held.values())


@dataclass(frozen=True, slots=True, eq=False)
class FailedStep:
    """The state in which torch ran out of memory.

    Attributes:
        part: what ran.
        recomputing: whether a block was run again in the backward.
        module: the innermost module of the model that ran, empty for the model itself; None if none did.
        line: the innermost code that ran outside torch and this package.
        asked: the bytes that could not be allocated, by torch's message; 0 if it does not say.
        model: the model that was trained; None if none was yet.
        call: the model's last call; None likewise.
        held: bytes on its device that do not depend on how far the step came.
        optimizer: the class of the optimizer; empty if none was found.
        defaults: those of the optimizer.
        device: where the model is.
        allocated: the bytes that torch had allocated there; None if it does not count them.
        reserved: those that it had reserved, likewise.
        room: those that this process may use there: the reserved and the free ones.
    """

    part: FailedPart
    recomputing: bool
    module: str | None
    line: str
    asked: int
    model: nn.Module | None = None
    call: LastCall | None = None
    held: Mapping[Held, int] = field(default_factory=dict)
    optimizer: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    device: torch.device | None = None
    allocated: int | None = None
    reserved: int | None = None
    room: int | None = None

    @classmethod
    def of(cls, error: BaseException, calls: Iterable[LastCall]) -> FailedStep | None:
        """Build the record from an error, or one that it was raised from; return None if neither is about memory.

        `calls` are those of the models that train.
        """
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, torch.OutOfMemoryError):
            cause = cause.__cause__
        if cause is None:
            return None
        match = _ASKED.search(str(cause))
        asked = (size_in_bytes(match[1]) or 0) if match else 0
        part, recomputing, running, line = _place(frame for frame, _ in walk_tb(cause.__traceback__))
        known = {model: call for call in calls if (model := call.model()) is not None}
        latest = max(known, key=lambda model: known[model].number, default=None)
        model, call = latest, None if latest is None else known[latest]
        for outer, arguments in running if part is FailedPart.FORWARD else ():
            if outer in known:
                model, call = outer, known[outer]
                call.note_arguments(*arguments)
                break
        if model is None:
            return cls(part, recomputing, None, line, asked)
        names = {module: name for name, module in model.named_modules()}
        module = next((names[each] for each, _ in reversed(running) if each in names), None)
        if call is not None:
            call.keep()
        parameters = list(nn.Module.parameters(model))
        device = parameters[0].device
        optimizers = optimizers_of(parameters)
        optimizer = next(iter(optimizers), None)
        held: dict[Held, list[Any]] = {
            Held.PARAMETERS: parameters,
            Held.BUFFERS: list(model.buffers()),
            Held.GRADIENTS: [parameter.grad for parameter in parameters if parameter.grad is not None],
            Held.OPTIMIZER: [each for optimizer in optimizers for each in tensors(optimizer.state)],
        }
        sums = {}
        for kind, some in held.items():
            parts = {id(inner): inner for each in some for inner in inner_tensors(each) if inner.device == device}
            sums[kind] = sum(inner.numel() * inner.itemsize for inner in parts.values())
        return cls(
            part,
            recomputing,
            module,
            line,
            asked,
            model,
            call,
            sums | {Held.INPUTS: 0 if call is None else call.input_bytes(device)},
            "" if optimizer is None else type(optimizer).__name__,
            {} if optimizer is None else {k: v for k, v in optimizer.defaults.items() if type(v) in PLAIN},
            device,
            allocated(device),
            reserved := allocated(device, "memory_reserved"),
            None if device.type != "cuda" else torch.cuda.mem_get_info(device)[0] + (reserved or 0),
        )

    @property
    def place(self) -> str:
        """The place of the failure as a clause: "in the forward of model.layers.3.mlp (modeling_llama.py:164)"."""
        at = f" ({self.line})" if self.line else ""
        match self.part:
            case FailedPart.FORWARD:
                return f"in the forward{f' of {self.module}' if self.module else ''}{at}"
            case FailedPart.BACKWARD if self.recomputing:
                return f"in the backward, as it recomputed {self.module or 'a part of it'}{at}"
            case FailedPart.BACKWARD:
                return f"in the backward{at}"
            case FailedPart.OPTIMIZER:
                return f"in the step of {self.optimizer or 'the optimizer'}{at}"
            case FailedPart.OUTSIDE:
                return f"outside of its forward, the backward and the optimizer{at}"

    def __str__(self) -> str:
        if self.model is None:
            return f"torch ran out of memory before a model was trained{f' ({self.line})' if self.line else ''}"
        held = listed([f"{size(count)} of {kind}" for kind, count in self.held.items() if count])
        torch_has = "" if self.allocated is None else f"; torch had allocated {size(self.allocated)}"
        return f"{type(self.model).__name__} ran out of memory {self.place}, with {held}{torch_has}"

    @property
    def sentence(self) -> str:
        """The step as a sentence, with the command to run next if a script is running."""
        is_script = sys.argv[:1] and sys.argv[0].endswith(".py") and self.model is not None
        return f"{self}; to find what fits, run: {next_command(sys.argv)}" if is_script else str(self)


def next_command(arguments: Sequence[str]) -> str:
    """Return the command that finds what fits, for a script with its arguments."""
    return f"ckpt_surgery fit {shlex.join(arguments)}"


def _seen(value: Any) -> Any:
    """Return a record of an argument that does not keep it alive."""
    if isinstance(value, Tensor):
        needs = value.requires_grad and is_differentiable(value)
        return _SeenTensor(ref(value), id(value), value.shape, value.dtype, value.device, needs)
    if type(value) in PLAIN or isinstance(value, (torch.dtype, torch.device)):
        return value
    return {key: tree_map(_seen, held) for key, held in value.items()} if isinstance(value, Mapping) else ref(value)


def _place(frames: Iterator[FrameType]) -> tuple[FailedPart, bool, list[tuple[nn.Module, _Arguments]], str]:
    """Return the part of the step, whether it is a recompute, the running modules from the outermost, and the line."""
    part, recomputing, line = FailedPart.OUTSIDE, False, ""
    running: list[tuple[nn.Module, _Arguments]] = []
    for frame in frames:
        code, file = frame.f_code, frame.f_code.co_filename
        if code is MODULE_CALL:
            held = frame.f_locals
            running.append((held["self"], (held["args"], held["kwargs"])))
            recomputing = part is FailedPart.BACKWARD
            part = part if recomputing else FailedPart.FORWARD
        elif code in _BACKWARD:
            part, running = FailedPart.BACKWARD, []
        elif code.co_varnames[:1] == ("self",) and isinstance(frame.f_locals.get("self"), Optimizer):
            part, running, recomputing = FailedPart.OPTIMIZER, [], False
        if code.co_name in _MODE_METHODS:
            return part, recomputing, running, line
        if not file.startswith((TORCH, OURS, "<")):
            line = f"{os.path.basename(file)}:{frame.f_lineno}"
    return part, recomputing, running, line


def optimizers_of(parameters: Iterable[nn.Parameter]) -> list[Optimizer]:
    """List the optimizers in this process that train some of these parameters, the one that trains most first."""
    trained = set(map(id, parameters))
    counts: dict[Optimizer, int] = {}
    for each in gc.get_objects():
        groups = vars(each).get("param_groups", ()) if issubclass(type(each), Optimizer) else ()
        if number := sum(id(parameter) in trained for group in groups for parameter in group["params"]):
            counts[each] = number
    return sorted(counts, key=lambda each: (-counts[each], "optimizer" in vars(each)))  # wrappers last
