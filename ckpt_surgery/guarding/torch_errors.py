"""Explain errors of torch with a known cause in checkpointing: which block, why, and what to change.

What was not measured is reported as a known cause.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from traceback import walk_tb
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointError, CheckpointFunction

from ckpt_surgery.errors import CkptSurgeryError
from ckpt_surgery.guarding.entry_looks import Change, EntryLooks, Written
from ckpt_surgery.guarding.faults import GuardFault, GuardFaultKind
from ckpt_surgery.guarding.steps import WatchedPhase
from ckpt_surgery.measure.own_checkpoints import TORCH
from ckpt_surgery.runtime.blocks.library_switch import embedding_hooks
from ckpt_surgery.runtime.self_check.routing import has_experts
from ckpt_surgery.text import listed, some
from ckpt_surgery.torch_names import MODULE_CALL, CheckpointFrame, is_compiled, is_compiled_function

_SIGN = "ckpt_surgery: "
_DEPTH = 4
"""How deep in closures and partials of a checkpointed function its module is looked for."""


class KnownError(Enum):
    """The errors of torch that are known here."""

    OTHER_RECOMPUTE = auto()
    UNPACKED_TWICE = auto()
    BACKWARD_AGAIN = auto()
    READY_TWICE = auto()
    LEAF_WRITTEN = auto()
    NO_GRAPH = auto()


_KNOWN: Sequence[tuple[type[Exception], str, KnownError]] = (
    (CheckpointError, "A different number of tensors was saved during", KnownError.OTHER_RECOMPUTE),
    (CheckpointError, "have different metadata than during the forward", KnownError.OTHER_RECOMPUTE),
    (CheckpointError, "trying to save more tensors during recomputation", KnownError.OTHER_RECOMPUTE),
    (RuntimeError, "not found in storage", KnownError.OTHER_RECOMPUTE),
    (CheckpointError, "that was already unpacked once", KnownError.UNPACKED_TWICE),
    (RuntimeError, "Trying to backward through the graph a second time", KnownError.BACKWARD_AGAIN),
    (RuntimeError, "Trying to backward an extra time", KnownError.BACKWARD_AGAIN),
    (RuntimeError, "Expected to mark a variable ready only once", KnownError.READY_TWICE),
    (RuntimeError, "a leaf Variable that requires grad is being used in an in-place", KnownError.LEAF_WRITTEN),
    (RuntimeError, "does not require grad and does not have a grad_fn", KnownError.NO_GRAPH),
)
"""The type of each error, and what torch says in it."""
_METADATA = r" metadata: .*?torch\.Size\((\[.*?\])\), 'dtype': torch\.(\w+)"
_SAVED = re.compile(rf"saved{_METADATA}.*?\nrecomputed{_METADATA}")
_PARAMETER = re.compile(r"Parameter at index \d+ with name (\S+) has been marked")


@dataclass(frozen=True, slots=True)
class WatchedModel:
    """A model that a guard watches, and its looks in the step that began last; None where it took none."""

    model: nn.Module
    looks: EntryLooks | None


@dataclass(frozen=True, slots=True)
class _Origin:
    """The origin of an error, by its traceback: the checkpointed function, and the module."""

    function: Any = None
    reentrant: bool = False
    innermost: nn.Module | None = None
    own_backward: str = ""

    @classmethod
    def of(cls, trace: TracebackType | None) -> _Origin:
        """Read the frames of a traceback; the last ones count most."""
        function, reentrant, innermost, own_backward = None, False, None, ""
        for frame, line in walk_tb(trace):
            held = frame.f_locals
            if frame.f_code.co_name == "backward" and not frame.f_code.co_filename.startswith(TORCH):
                own_backward = f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{line})"
            if frame.f_code is MODULE_CALL:
                innermost = held["self"]
            elif frame.f_code is CheckpointFunction.backward.__code__:
                function, reentrant = held["ctx"].run_function, True
            elif isinstance(recorded := held.get("frame"), CheckpointFrame):
                function = _closed_over(recorded.recompute_fn).get("fn", function)
        return cls(function, reentrant, innermost, own_backward)


def explain(error: BaseException, watched: Sequence[WatchedModel]) -> str:
    """Add a note to an error of torch that is known, was raised from one, or came up in a recompute; return it.

    The note is empty where nothing is known.
    """
    notes: Sequence[str] = getattr(error, "__notes__", ())
    for note in notes:
        if note.startswith(_SIGN):
            return note.removeprefix(_SIGN)
    if said := _note(error, watched):
        error.add_note(_SIGN + said)
    return said


def _note(error: BaseException, watched: Sequence[WatchedModel]) -> str:
    for cause in _causes(error):
        for kind, said, known in _KNOWN:
            if isinstance(cause, kind) and said in str(cause):
                return _explained(known, str(cause), _Origin.of(cause.__traceback__), watched)
    place = _Origin.of(error.__traceback__)
    if place.function is not None and not isinstance(error, CkptSurgeryError | torch.OutOfMemoryError):
        return (
            f"the error came up in the recompute of {_subject(place, watched)}, and not in its forward: what that "
            "found in a context or a global state, as an attribute or in a container, may be gone by then. Keep it "
            "until the backward has ended, or give it as an argument."
        )
    return ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _explained(known: KnownError, said: str, place: _Origin, watched: Sequence[WatchedModel]) -> str:
    block, subject = _module_of(place.function), _subject(place, watched)
    match known:
        case KnownError.OTHER_RECOMPUTE:
            return _other_recompute(said, subject, block, _changes(block, watched))
        case KnownError.UNPACKED_TWICE:
            return (
                f"what the recompute of {subject} made was asked for twice. Known cause: a torch.autograd.Function "
                "that reads ctx.saved_tensors more than once in its backward: read it once, into a variable."
            )
        case KnownError.BACKWARD_AGAIN:
            return _backward_again(subject, place, watched)
        case KnownError.READY_TWICE:
            return _ready_twice(said, subject, place)
        case KnownError.LEAF_WRITTEN:
            return _leaf_written(place.innermost, watched)
        case KnownError.NO_GRAPH:
            return _no_graph(watched)


def _other_recompute(said: str, subject: str, block: nn.Module | None, changes: Sequence[Change | Written]) -> str:
    saved = _SAVED.search(said)
    seen = ""
    if saved:
        shape, dtype, shape_now, dtype_now = saved.groups()
        pair = (f"shape {shape}", shape_now) if shape != shape_now else (f"dtype {dtype}", dtype_now)
        seen = f" (it saved a tensor of {pair[0]}, and then of {pair[1]})"
    if changes:
        return (
            f"{subject} found other things in its recompute than in its forward{seen}: {some(map(str, changes))}. "
            "Keep that as it was until the backward has ended, or take it out of the block; a cache goes with "
            "use_cache=False."
        )
    if "to_copy" in said:
        return (
            f"the recompute of {subject} did not cast what its forward has cast, or the other way round. Known cause: "
            "under autocast, a weight is cast once for all that use it, in whichever checkpoint comes first: use "
            "torch.autocast(..., cache_enabled=False), or enter autocast inside of each checkpoint."
        )
    if block is not None and _compiles(block):
        return (
            f"the recompute of {subject} went another way than its forward{seen}. A part of it is compiled: known "
            "causes are a recompile, or a limit of recompiles, between the two, after which that part runs eagerly "
            "and saves other tensors."
        )
    if block is not None and has_experts(block):
        return (
            f"the recompute of {subject} went another way than its forward{seen}. It has a router: where scores are "
            "nearly equal, the recompute may choose other experts; keep what the router chooses (topk), or its result."
        )
    return (
        f"the recompute of {subject} went another way than its forward{seen}; what has changed in between was not "
        "seen. Known causes: a cache or a list that both append to (use_cache=False), a mode, an adapter or "
        "requires_grad that is switched before the backward, weights that an offloader or ZeRO-3 has moved, and a "
        "choice that depends on something outside of the block, such as a counter."
    )


def _subject(place: _Origin, watched: Sequence[WatchedModel]) -> str:
    """Name what was checkpointed."""
    block = _module_of(place.function)
    function = getattr(place.function, "__qualname__", "")
    subject = f"the checkpointed function {function}" if function else "a checkpointed block"
    return subject if block is None else _named(block, watched)


def _compiles(block: nn.Module) -> bool:
    """Tell whether part of a block is compiled, or one of its modules holds a compiled function."""
    return any(is_compiled(module) or any(map(is_compiled_function, _held_by(module))) for module in block.modules())


def _held_by(module: nn.Module) -> Iterator[Any]:
    """Yield what a module holds, and what the objects that it holds hold."""
    for value in vars(module).values():
        yield value
        yield from getattr(value, "__dict__", {}).values()


def _backward_again(subject: str, place: _Origin, watched: Sequence[WatchedModel]) -> str:
    if kept := [name for each in watched if each.looks is not None for name in each.looks.kept]:
        holds = "holds a tensor" if len(kept) == 1 else "hold tensors"
        return (
            f"{some(kept)} {holds} with the graph of an earlier step as this one began, which no backward may reach "
            "again: store detach() of it, or drop it after each step."
        )
    if place.reentrant:
        return (
            f"the backward inside the reentrant checkpoint of {subject} came to a graph that was freed. Known cause: "
            "a tensor with gradient that the block gets in another way than as an argument, as from a list, an "
            "attribute or a closure: give it by position, or use use_reentrant=False."
        )
    return (
        "known causes are a tensor that is kept from one step to the next (a state, a cache, a memory) without "
        "detach(), and backward() called twice on one loss."
    )


def _ready_twice(said: str, subject: str, place: _Origin) -> str:
    parameter = _PARAMETER.search(said)
    named = f"parameter {parameter[1]}" if parameter else "a parameter"
    if not place.reentrant and place.own_backward:
        return (
            f"{place.own_backward} runs a backward of its own inside of the backward, and accumulates into {named} "
            "each time, as for each tile of a sequence: DistributedDataParallel takes one gradient for each "
            "parameter. Add the gradients up, and return the sum."
        )
    if not place.reentrant:
        return (
            f"the gradient of {named} came to DistributedDataParallel more than once in a backward. Known causes: "
            "parameters that are used outside of the forward, and several forwards before one backward."
        )
    return (
        f"in the reentrant checkpoint of {subject}, the gradient of {named} came to DistributedDataParallel more than "
        "once. Known causes: a block that runs several times in a step or shares weights, and "
        "find_unused_parameters=True; use use_reentrant=False."
    )


def _leaf_written(writer: nn.Module | None, watched: Sequence[WatchedModel]) -> str:
    embeddings = [_named(module, watched) for each in watched for module, _ in embedding_hooks(each.model)]
    made = (
        f"enable_input_require_grads() makes such leaves of what {listed(embeddings)} returns"
        if embeddings
        else "known causes are inputs that were made to require gradient, and weights written outside of no_grad()"
    )
    subject = "the script" if writer is None else _named(writer, watched)
    return (
        f"{subject} writes into a leaf that requires gradient, or into a view of one; {made}. Write into a clone(), "
        "or use an operation that is not in place, such as masked_scatter or torch.where."
    )


def _no_graph(watched: Sequence[WatchedModel]) -> str:
    models = [each.model for each in watched]
    if models and not any(parameter.requires_grad for model in models for parameter in model.parameters()):
        names = listed([type(model).__name__ for model in models])
        return f"no parameter of {names} requires gradient: unfreeze what is to train, or add an adapter."
    given_up = [looks for each in watched if (looks := each.looks) and looks.undone]
    ungraphed = (name for looks in given_up if looks.phase is WatchedPhase.FORWARD for name in looks.cut_off)
    if (block := next(ungraphed, None)) is not None:
        return f"{GuardFault(GuardFaultKind.CUT_OFF, (block,))}."
    return (
        "the loss has no graph. Known causes: a forward under torch.no_grad() or in inference mode, a loss that is "
        "detached, parameters that are all frozen, and reentrant checkpointing of blocks none of whose inputs needs "
        "gradient: call enable_input_require_grads(), or use use_reentrant=False."
    )


def _changes(block: nn.Module | None, watched: Sequence[WatchedModel]) -> Sequence[Change | Written]:
    """Return what a block found changed, or the block that it lies in."""
    for each in watched:
        for name, changes in each.looks.changes.items() if each.looks is not None else ():
            if block is not None and any(part is block for part in each.model.get_submodule(name).modules()):
                return changes
    return ()


def _named(module: nn.Module, watched: Sequence[WatchedModel]) -> str:
    """Return a module's class, with its name if it is part of a known model."""
    names = (name for each in watched for name, part in each.model.named_modules() if part is module)
    name = next(names, "")
    return f"{name} ({type(module).__name__})" if name else type(module).__name__


def _closed_over(function: Any) -> dict[str, Any]:
    """Return the variables that a function closes over, without unset ones."""
    held: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):
            held[name] = cell.cell_contents
    return held


def _module_of(function: Any, depth: int = _DEPTH) -> nn.Module | None:
    """Return the module that a checkpointed function runs: itself, a method's owner, or one that it closes over."""
    if isinstance(function, nn.Module):
        return function
    if isinstance(owner := getattr(function, "__self__", None), nn.Module):
        return owner
    if not depth:
        return None
    inner: Sequence[Any] = (function.func, *function.args) if isinstance(function, partial) else ()
    if inspect.isfunction(function):
        inner = list(_closed_over(function).values())
    return next((found for each in inner if (found := _module_of(each, depth - 1)) is not None), None)
