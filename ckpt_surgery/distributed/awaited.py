"""Whether a backward reaches every parameter for which a DistributedDataParallel waits after one of its forwards."""

from __future__ import annotations

from functools import partial
from typing import Any
from weakref import finalize, ref

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from ckpt_surgery.errors import DistributedError
from ckpt_surgery.runtime.tools.containers import tensors
from ckpt_surgery.text import some
from ckpt_surgery.torch_names import current_graph_task_id, engine

_LATER = 3
"""Callbacks at the end of a backward queue others: those of DistributedDataParallel are over after so many."""


class Awaited:
    """The parameters that a backward from the outputs of one forward has to reach, all in one.

    Only hooks of the outputs hold it, and its hooks on parameters go with it: a model that keeps an output keeps no
    wrapper.
    """

    def __init__(self, ddp: DistributedDataParallel, outputs: Any) -> None:
        self._ddp = ref(ddp)
        self._task = -1
        self._reached: set[int] = set()
        self._handles: list[RemovableHandle] = []
        ends = [tensor for tensor in tensors(outputs) if tensor.grad_fn is not None]
        if not ends:
            return
        for parameter in ddp.module.parameters():
            if parameter.requires_grad:
                note = partial(_note, self._reached)
                self._handles.append(parameter.register_post_accumulate_grad_hook(note))
        finalize(self, _remove, self._handles)
        for tensor in ends:
            tensor.register_hook(self._begins)  # type: ignore[no-untyped-call]

    def _begins(self, gradient: Tensor) -> None:
        task = current_graph_task_id()
        if self._handles and task != self._task:
            self._task = task
            engine.queue_callback(partial(self._ends, _LATER))

    def _ends(self, later: int) -> None:
        if later:
            engine.queue_callback(partial(self._ends, later - 1))
            return
        ddp = self._ddp()
        if ddp is None or not self._reached:  # torch.autograd.grad leaves nothing in parameters
            return
        _remove(self._handles)
        if has_finished(ddp):
            return
        missing = [
            name
            for name, parameter in ddp.module.named_parameters()
            if parameter.requires_grad and id(parameter) not in self._reached and name not in ddp.parameters_to_ignore
        ]
        raise DistributedError(
            f"call_through_ddp: the backward gave no gradient to {some(missing)} of {type(ddp.module).__name__}, for "
            f"which DistributedDataParallel still waits: gradients of this step stay those of rank {this_rank()}; let "
            "the method compute the whole loss and call backward once, or make the wrapper with "
            "find_unused_parameters=True"
        )


def await_gradients(ddp: DistributedDataParallel, outputs: Any) -> None:
    """Let the next backward from `outputs` raise DistributedError where DDP still waits for others when it has ended.

    Does nothing where DDP is not going to average, or looks for unused parameters itself.
    """
    looks = ddp.find_unused_parameters or ddp.static_graph
    if torch.is_grad_enabled() and ddp.require_backward_grad_sync and not looks:
        Awaited(ddp, outputs)


def has_finished(ddp: DistributedDataParallel) -> bool:
    """Whether the reducer has averaged what its last forward asked for."""
    try:
        ddp.reducer._check_reducer_finalized()
    except RuntimeError:
        return False
    return True


def this_rank() -> int:
    """The number of this rank in the whole job; 0 without a process group."""
    return dist.get_rank() if dist.is_initialized() else 0


def _note(reached: set[int], parameter: Tensor) -> None:
    reached.add(id(parameter))


def _remove(handles: list[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
    handles.clear()
