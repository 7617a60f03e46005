"""Find what checkpoints during a forward: by the frames on the stack, and by the modules that run in the backward."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from traceback import walk_stack
from typing import Any, Self

import torch
import torch.autograd.function
import torch.autograd.graph
import torch.utils.checkpoint
from torch import nn

import ckpt_surgery
from ckpt_surgery.measure.model_hook import ModelHook
from ckpt_surgery.measure.results import MODES, Mode
from ckpt_surgery.runtime.tools.classes import PACKAGE, library_of
from ckpt_surgery.torch_names import COMPOSABLE_CHECKPOINT, MODULE_CALL, function_of, saved_tensors_hooks_now
from ckpt_surgery.undo import UndoableHooks

TORCH = os.path.dirname(torch.__file__) + os.sep
_CHECKPOINT = torch.utils.checkpoint.__file__
_ENGINE = {torch.autograd.graph.__file__, torch.autograd.function.__file__}
OURS = os.path.dirname(ckpt_surgery.__file__) + os.sep
_REENTRANT = torch.utils.checkpoint.CheckpointFunction.forward.__code__


@dataclass(frozen=True, slots=True)
class OwnCheckpoint:
    """A checkpoint in a model that nobody asked for: the file and line of the call, or a recomputed module.

    `place` is empty where no call of torch's function was seen, and `module` where nothing was recomputed.
    """

    place: str
    module: str

    def __str__(self) -> str:
        return f"at {self.place}" if self.place else f"in {self.module}, which runs again in the backward"


class OwnCheckpoints(UndoableHooks):
    """Finds what checkpoints in a step: `look` is called at each operator of the forward.

    As a context manager it also finds modules that run again in the backward. `packs` tells whether hooks of the
    model's own pack what is saved.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = model
        self.packs = False
        self._place = self._module = ""
        self._in_backward = self._is_reentrant = False

    @property
    def first(self) -> OwnCheckpoint | None:
        """The first own checkpoint, or None."""
        return OwnCheckpoint(self._place, self._module) if self._place or self._module else None

    @property
    def is_reentrant(self) -> bool:
        """Whether the first call of torch's checkpoint function is reentrant."""
        return self._is_reentrant

    @property
    def modes(self) -> frozenset[Mode]:
        """The modes that the first call may have had."""
        return frozenset(MODES if not self._place else ["reentrant" if self._is_reentrant else "non_reentrant"])

    def __enter__(self) -> Self:
        for name, module in self._model.named_modules():
            hook = ModelHook(partial(self._enter, name or type(module).__name__))
            self._handles.append(module.register_forward_pre_hook(hook))
        return self

    def look(self) -> None:
        """Look for a checkpoint around the running operator until one is found, and for hooks that pack."""
        self.packs = self.packs or _packs()
        if not self._place and (place := checkpoint_call()):
            self._place = place
            self._is_reentrant = any(frame.f_code is _REENTRANT for frame, _ in walk_stack(None))

    def start_backward(self) -> None:
        """Take modules that are entered from now on for recomputed ones."""
        self._in_backward = True

    def _enter(self, name: str, _module: nn.Module, _arguments: object) -> None:
        if self._in_backward:
            self._module = self._module or name


def _packs() -> bool:
    """Tell whether hooks pack what is saved now that are neither this package's nor those of torch's checkpoint."""
    hooks = saved_tensors_hooks_now(True)
    if hooks is None or library_of(hooks[0]) == PACKAGE:
        return False
    return getattr(hooks[0], "__module__", "") != torch.utils.checkpoint.__name__


def own_functions(result: torch.Tensor) -> tuple[str, ...]:
    """Name the subclasses of autograd.Function, neither torch's nor ours, in the graph of a result."""
    found: dict[str, None] = {}
    seen, nodes = set[Any](), [result.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += (following for following, _ in node.next_functions)
        function = function_of(node)
        if function is not None and library_of(function) not in ("torch", PACKAGE):
            found[function.__name__] = None
    return tuple(found)


def checkpoint_call(but_for: Callable[[Mapping[str, Any]], bool] = lambda _: False) -> str:
    """Return the file and line of the call of torch's checkpoint function around this code; empty outside.

    Calls of this package do not count, nor do those for whose local variables `but_for` is true.
    """
    inside, held = False, dict[str, Any]()
    for frame, line in walk_stack(inspect.currentframe()):
        file = frame.f_code.co_filename
        if file == _CHECKPOINT:
            inside, held = True, frame.f_locals
        if inside and not file.startswith(TORCH):
            if not (file.startswith(OURS) or but_for(held)):
                return f"{file}:{line}"
            inside = False
    return ""


def recomputing_call() -> str:
    """Return the file and line of the function that runs modules again in the current backward.

    It belongs to another library or to the script; the result is empty for functions of torch.
    """
    place = ""
    for frame, line in walk_stack(inspect.currentframe()):
        file = frame.f_code.co_filename
        if file in _ENGINE:
            return place
        if file == _CHECKPOINT:
            place = ""
        elif not file.startswith(TORCH):
            place = f"{file}:{line}"
    return place


def is_composable(module: nn.Module) -> bool:
    """Tell whether a module has torch's composable checkpoint: it consists of hooks, so no line calls it."""
    return any(getattr(hook, "__module__", "") == COMPOSABLE_CHECKPOINT for hook in module._forward_pre_hooks.values())


def running_modules() -> Iterator[nn.Module]:
    """Yield the modules whose calls are running, the innermost first."""
    for frame, _ in walk_stack(inspect.currentframe()):
        if frame.f_code is MODULE_CALL:
            yield frame.f_locals["self"]
