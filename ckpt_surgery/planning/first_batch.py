"""Hooks that wait on a model for the first training batch, to choose by its sizes how to checkpoint."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from traceback import walk_stack
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from ckpt_surgery.errors import PlanningError
from ckpt_surgery.measure.arguments import positional_key
from ckpt_surgery.measure.model_hook import ModelHook, nothing
from ckpt_surgery.measure.own_checkpoints import running_modules
from ckpt_surgery.text import listed
from ckpt_surgery.torch_names import MODULE_CALL, current_graph_task_id
from ckpt_surgery.undo import Undoable


class FirstBatch(Undoable):
    """Base class of a change chosen at the first batch; the object itself is the hook that waits on the model.

    Copies of the model get a hook that does nothing. A second change of its class on the same model replaces it.
    """

    _handle: RemovableHandle

    def __init__(self, model: nn.Module) -> None:
        for hook in [each for each in model._forward_pre_hooks.values() if isinstance(each, type(self))]:
            hook._handle.remove()
        self._handle = model.register_forward_pre_hook(self, with_kwargs=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return ModelHook, (nothing,)

    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Choose in a call that trains."""
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or current_graph_task_id() != -1:
            return
        if self.undone:
            self._handle.remove()
            return
        self.begin(model, {positional_key(place): value for place, value in enumerate(args)} | kwargs)

    def begin(self, model: nn.Module, inputs: Mapping[str, Any]) -> None:
        """Handle the beginning of a forward with gradients; `inputs` are its arguments."""
        raise NotImplementedError


def is_alone() -> bool:
    """Tell whether this process trains without other ranks."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1


def running_wrapper() -> DistributedDataParallel | None:
    """Return the DistributedDataParallel whose forward runs, if any; all of its ranks are then in it too."""
    return next((each for each in running_modules() if isinstance(each, DistributedDataParallel)), None)


def running_inputs(model: nn.Module) -> dict[str, Any] | None:
    """Return the arguments of the running call of `model`; None if none is running."""
    for frame, _ in walk_stack(inspect.currentframe()):
        if frame.f_code is MODULE_CALL and (given := frame.f_locals)["self"] is model:
            return {**{positional_key(place): value for place, value in enumerate(given["args"])}, **given["kwargs"]}
    return None


def place_of(model: nn.Module) -> torch.device:
    """Return the device that all parameters of a model are on. Raises PlanningError if they are on several or none."""
    places = {parameter.device for parameter in model.parameters()}
    if not places:
        raise PlanningError("the model has no parameters: there is nothing to train")
    if len(places) > 1:
        raise PlanningError(f"the model is on {listed(sorted(map(str, places)))}: a prediction is for one device")
    return places.pop()
