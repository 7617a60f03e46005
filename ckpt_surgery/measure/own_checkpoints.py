"""Find what checkpoints during a forward: by the frames on the stack, and by the modules that run in the backward."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
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
"""TORCH and OURS are what the names of files begin with in torch and in this package."""
_REENTRANT = torch.utils.checkpoint.CheckpointFunction.forward.__code__


class OwnCheckpoints(UndoableHooks):
    """The checkpoints of a model's own in a step. `look` is to be called at each operator of the forward.

    As a context manager it also finds modules that run again in the backward. `packs` tells whether hooks of the
    model's own pack what is saved, `is_reentrant` whether the first call of torch's checkpoint function is reentrant.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = model
        self.packs = False
        self.is_reentrant = False
        self._place = self._module = ""
        self._in_backward = False

    @property
    def first(self) -> str:
        """Where the first of them is: the file and line of the call, or else a module; empty without one."""
        if self._place:
            return f"at {self._place}"
        return f"in {self._module}, which runs again in the backward" if self._module else ""

    @property
    def modes(self) -> frozenset[Mode]:
        """The modes that the first call may have had."""
        return frozenset(MODES if not self._place else ["reentrant" if self.is_reentrant else "non_reentrant"])

    def __enter__(self) -> Self:
        for name, module in self._model.named_modules():
            hook = ModelHook(partial(self._enter, name or type(module).__name__))
            self._handles.append(module.register_forward_pre_hook(hook))
        return self

    def look(self) -> None:
        """Look for a checkpoint around the running operator until one is found, and for hooks that pack."""
        self.packs = self.packs or packing_hook() is not None
        if not self._place and (place := checkpoint_call()):
            self._place = place
            self.is_reentrant = any(frame.f_code is _REENTRANT for frame, _ in walk_stack(None))

    def start_backward(self) -> None:
        """Treat modules that are entered from now on as recomputed."""
        self._in_backward = True

    def _enter(self, name: str, _module: nn.Module, _arguments: object) -> None:
        if self._in_backward:
            self._module = self._module or name


def packing_hook() -> Any:
    """Return the hook that now packs what is saved; None if that is ours, torch's checkpoint's, or none."""
    hooks = saved_tensors_hooks_now(True)
    if hooks is None or library_of(hooks[0]) == PACKAGE:
        return None
    return None if getattr(hooks[0], "__module__", "") == torch.utils.checkpoint.__name__ else hooks[0]


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

    Calls from this package do not count, nor do those with local variables of which `but_for` is true.
    """
    inside, variables = False, dict[str, Any]()
    frame = inspect.currentframe()
    while frame is not None:  # `walk_stack` looks up the line of every frame, which takes longer than the rest
        file = frame.f_code.co_filename
        if file == _CHECKPOINT:
            inside, variables = True, frame.f_locals
        if inside and not file.startswith(TORCH):
            if not (file.startswith(OURS) or but_for(variables)):
                return f"{file}:{frame.f_lineno}"
            inside = False
        frame = frame.f_back
    return ""


def recomputing_call() -> str:
    """Return the file and line of the function that runs modules again in the current backward.

    It is in another library or in the script; empty for functions of torch.
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
