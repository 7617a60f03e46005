"""Explain errors of torch with a known cause in checkpointing: which block, why, and what to change.

What was not measured is reported as a known cause.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from traceback import walk_tb
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointError, CheckpointFunction

from ckpt_surgery.errors import CkptSurgeryError
from ckpt_surgery.guarding.entry_looks import EntryLooks
from ckpt_surgery.guarding.faults import GuardFault, GuardFaultKind
from ckpt_surgery.guarding.steps import WatchedPhase
from ckpt_surgery.measure.own_checkpoints import TORCH
from ckpt_surgery.runtime.blocks.library_switch import embedding_hooks
from ckpt_surgery.runtime.self_check.routing import has_router
from ckpt_surgery.text import listed, some
from ckpt_surgery.torch_names import MODULE_CALL, CheckpointFrame, is_compiled, is_compiled_function

_PREFIX = "ckpt_surgery: "
_DEPTH = 4
"""How deep in its closures and partials the module of a checkpointed function is looked for."""
_METADATA = r" metadata: .*?torch\.Size\((\[.*?\])\), 'dtype': torch\.(\w+)"
_SAVED = re.compile(rf"saved{_METADATA}.*?\nrecomputed{_METADATA}")
_PARAMETER = re.compile(r"Parameter at index \d+ with name (\S+) has been marked")


@dataclass(frozen=True, slots=True)
class WatchedModel:
    """A model that a guard watches, and what its blocks found on entry in the latest step; None if not recorded."""

    model: nn.Module
    looks: EntryLooks | None


@dataclass(frozen=True, slots=True)
class _Failure:
    """An error with what its traceback tells: the checkpointed function, and the module that ran."""

    said: str
    watched: Sequence[WatchedModel]
    function: Any = None
    reentrant: bool = False
    innermost: nn.Module | None = None
    own_backward: str = ""

    @classmethod
    def of(cls, error: BaseException, watched: Sequence[WatchedModel]) -> _Failure:
        """Read the frames of the traceback; the last ones count most."""
        function, reentrant, innermost, own_backward = None, False, None, ""
        for frame, line in walk_tb(error.__traceback__):
            held = frame.f_locals
            if frame.f_code.co_name == "backward" and not frame.f_code.co_filename.startswith(TORCH):
                own_backward = f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{line})"
            if frame.f_code is MODULE_CALL:
                innermost = held["self"]
            elif frame.f_code is CheckpointFunction.backward.__code__:
                function, reentrant = held["ctx"].run_function, True
            elif isinstance(recorded := held.get("frame"), CheckpointFrame):
                function = _closed_over(recorded.recompute_fn).get("fn", function)
        return cls(str(error), watched, function, reentrant, innermost, own_backward)

    @property
    def block(self) -> nn.Module | None:
        """The module that was checkpointed, if it is known."""
        return _module_of(self.function)

    @property
    def subject(self) -> str:
        """What was checkpointed, in words."""
        if self.block is not None:
            return self.name(self.block)
        function = getattr(self.function, "__qualname__", "")
        return f"the checkpointed function {function}" if function else "a checkpointed block"

    def name(self, module: nn.Module) -> str:
        """Return a module's class, with its name if it is part of a watched model."""
        names = (name for each in self.watched for name, part in each.model.named_modules() if part is module)
        name = next(names, "")
        return f"{name} ({type(module).__name__})" if name else type(module).__name__

    def unpacked_twice(self) -> str:
        return (
            f"what the recompute of {self.subject} made was asked for twice. Known cause: a torch.autograd.Function "
            "that reads ctx.saved_tensors more than once in its backward: read it once, into a variable."
        )

    def other_recompute(self) -> str:
        saved, seen = _SAVED.search(self.said), ""
        if saved:
            shape, dtype, shape_now, dtype_now = saved.groups()
            pair = (f"shape {shape}", shape_now) if shape != shape_now else (f"dtype {dtype}", dtype_now)
            seen = f" (it saved a tensor of {pair[0]}, and then of {pair[1]})"
        if changes := self._changes():
            return (
                f"{self.subject} found other things in its recompute than in its forward{seen}: "
                f"{some(changes)}. Keep that as it was until the backward has ended, or take it out of the "
                "block; a cache goes with use_cache=False."
            )
        if "to_copy" in self.said:
            return (
                f"the recompute of {self.subject} did not cast what its forward has cast, or the other way round. "
                "Known cause: under autocast, a weight is cast once for all that use it, in whichever checkpoint "
                "comes first: use torch.autocast(..., cache_enabled=False), or enter autocast inside of each "
                "checkpoint."
            )
        went = f"the recompute of {self.subject} went another way than its forward{seen}"
        parts = [] if self.block is None else [*self.block.modules()]
        # a module may hold a compiled function, or an object that does
        held = [value for part in parts for value in vars(part).values()]
        held += [inner for value in held for inner in getattr(value, "__dict__", {}).values()]
        if any(map(is_compiled, parts)) or any(map(is_compiled_function, held)):
            return (
                f"{went}. A part of it is compiled: known causes are a recompile, or a limit of recompiles, between "
                "the two, after which that part runs eagerly and saves other tensors."
            )
        if self.block is not None and has_router(self.block, surely=True):
            return (
                f"{went}. It has a router: where scores are nearly equal, the recompute may choose other experts; "
                "keep what the router chooses (topk), or its result."
            )
        return (
            f"{went}; what has changed in between was not seen. Known causes: a cache or a list that both append to "
            "(use_cache=False), a mode, an adapter or requires_grad that is switched before the backward, weights "
            "that an offloader or ZeRO-3 has moved, and a choice that depends on something outside of the block, such "
            "as a counter."
        )

    def _changes(self) -> Sequence[str]:
        """Return what the block found changed, or the block that it lies in."""
        block = self.block
        for each in self.watched:
            for name, changes in each.looks.changes.items() if each.looks is not None else ():
                if any(part is block for part in each.model.get_submodule(name).modules()):
                    return changes
        return ()

    def backward_again(self) -> str:
        if kept := [name for each in self.watched if each.looks is not None for name in each.looks.kept]:
            holds = "holds a tensor" if len(kept) == 1 else "hold tensors"
            return (
                f"{some(kept)} {holds} with the graph of an earlier step as this one began, which no backward may "
                "reach again: store detach() of it, or drop it after each step."
            )
        if self.reentrant:
            return (
                f"the backward inside the reentrant checkpoint of {self.subject} came to a graph that was freed. "
                "Known cause: a tensor with gradient that the block gets in another way than as an argument, as from "
                "a list, an attribute or a closure: give it by position, or use use_reentrant=False."
            )
        return (
            "known causes are a tensor that is kept from one step to the next (a state, a cache, a memory) without "
            "detach(), and backward() called twice on one loss."
        )

    def ready_twice(self) -> str:
        parameter = _PARAMETER.search(self.said)
        named = f"parameter {parameter[1]}" if parameter else "a parameter"
        if self.reentrant:
            return (
                f"in the reentrant checkpoint of {self.subject}, the gradient of {named} came to "
                "DistributedDataParallel more than once. Known causes: a block that runs several times in a step or "
                "shares weights, and find_unused_parameters=True; use use_reentrant=False."
            )
        if self.own_backward:
            return (
                f"{self.own_backward} runs a backward of its own inside of the backward, and accumulates into {named} "
                "each time, as for each tile of a sequence: DistributedDataParallel takes one gradient for each "
                "parameter. Add the gradients up, and return the sum."
            )
        return (
            f"the gradient of {named} came to DistributedDataParallel more than once in a backward. Known causes: "
            "parameters that are used outside of the forward, and several forwards before one backward."
        )

    def leaf_written(self) -> str:
        embeddings = [self.name(module) for each in self.watched for module, _ in embedding_hooks(each.model)]
        made = (
            f"enable_input_require_grads() makes such leaves of what {listed(embeddings)} returns"
            if embeddings
            else "known causes are inputs that were made to require gradient, and weights written outside of no_grad()"
        )
        writer = "the script" if self.innermost is None else self.name(self.innermost)
        return (
            f"{writer} writes into a leaf that requires gradient, or into a view of one; {made}. Write into a "
            "clone(), or use an operation that is not in place, such as masked_scatter or torch.where."
        )

    def no_graph(self) -> str:
        models = [each.model for each in self.watched]
        if models and not any(parameter.requires_grad for model in models for parameter in model.parameters()):
            names = listed([type(model).__name__ for model in models])
            return f"no parameter of {names} requires gradient: unfreeze what is to train, or add an adapter."
        given_up = [looks for each in self.watched if (looks := each.looks) and looks.undone]
        ungraphed = (name for looks in given_up if looks.phase is WatchedPhase.FORWARD for name in looks.cut_off)
        if (block := next(ungraphed, None)) is not None:
            return f"{GuardFault(GuardFaultKind.CUT_OFF, (block,))}."
        return (
            "the loss has no graph. Known causes: a forward under torch.no_grad() or in inference mode, a loss that "
            "is detached, parameters that are all frozen, and reentrant checkpointing of blocks none of whose inputs "
            "needs gradient: call enable_input_require_grads(), or use use_reentrant=False."
        )


_KNOWN: Sequence[tuple[type[Exception], str, Callable[[_Failure], str]]] = (
    (CheckpointError, "A different number of tensors was saved during", _Failure.other_recompute),
    (CheckpointError, "have different metadata than during the forward", _Failure.other_recompute),
    (CheckpointError, "trying to save more tensors during recomputation", _Failure.other_recompute),
    (RuntimeError, "not found in storage", _Failure.other_recompute),
    (CheckpointError, "that was already unpacked once", _Failure.unpacked_twice),
    (RuntimeError, "Trying to backward through the graph a second time", _Failure.backward_again),
    (RuntimeError, "Trying to backward an extra time", _Failure.backward_again),
    (RuntimeError, "Expected to mark a variable ready only once", _Failure.ready_twice),
    (RuntimeError, "a leaf Variable that requires grad is being used in an in-place", _Failure.leaf_written),
    (RuntimeError, "does not require grad and does not have a grad_fn", _Failure.no_graph),
)
"""The errors of torch that are known: the type of each, what torch says in it, and what explains it."""


def explain(error: BaseException, watched: Sequence[WatchedModel]) -> str:
    """Add a note to a known error of torch, one raised from it, or one in a recompute; return it, empty for others."""
    notes: Sequence[str] = getattr(error, "__notes__", ())
    for note in notes:
        if note.startswith(_PREFIX):
            return note.removeprefix(_PREFIX)
    if said := _note(error, watched):
        error.add_note(_PREFIX + said)
    return said


def _note(error: BaseException, watched: Sequence[WatchedModel]) -> str:
    cause: BaseException | None = error
    while cause is not None:
        for kind, said, explanation in _KNOWN:
            if isinstance(cause, kind) and said in str(cause):
                return explanation(_Failure.of(cause, watched))
        cause = cause.__cause__
    failure = _Failure.of(error, watched)
    if failure.function is None or isinstance(error, CkptSurgeryError | torch.OutOfMemoryError):
        return ""
    return (
        f"the error came up in the recompute of {failure.subject}, and not in its forward: what that found in a "
        "context or a global state, as an attribute or in a container, may be gone by then. Keep it until the "
        "backward has ended, or give it as an argument."
    )


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
