"""DistributedDataParallel and the losses that pass it by: notice them, and run a method through it.

DDP averages the gradients of one backward for each of its forwards. Whatever else reaches the parameters stays on its
rank, without a word: each rank then trains a model of its own, and rank 0's is saved.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from types import TracebackType
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ckpt_surgery.distributed.errors import DistributedError, DistributedWarning
from ckpt_surgery.runtime.calls import tensors

_CURE = (
    "call the wrapper itself, or call_through_ddp(ddp, method, ...); where the loop must stay as it is, "
    "sync_gradients(model) before the optimizer's step"
)


class _Kind(Enum):
    """What happens to the gradients of one backward."""

    AVERAGED = auto()
    ACCUMULATED = auto()  # under no_sync, as the user wants
    LEFT = auto()


class DDPWatch:
    """Looks at every backward that reaches the parameters of one DistributedDataParallel, until `remove`.

    Made by `watch_ddp`; also a context manager. `bypassed` counts the backwards (those inside reentrant checkpointing
    one by one), or with `when="step"` the optimizer's steps, whose gradients were left as this rank computed them.
    """

    def __init__(
        self,
        ddp: DistributedDataParallel,
        optimizer: Optimizer | None,
        when: Literal["backward", "step"],
        action: Literal["warn", "raise"],
    ) -> None:
        self.bypassed = 0
        self._ddp = ddp
        self._when = when
        self._action = action
        self._prepared = False  # the reducer awaits a backward
        self._reached_since = False  # and one has reached a parameter since
        self._learnt = not ddp.static_graph  # a static graph's first reduction hangs on the outputs of the forward
        self._from_outputs = 0  # running backwards that began at an output that was marked
        self._unspent: set[int] = set()  # forwards under no_sync that no backward has come back to
        self._forwards = 0
        self._task = -1
        self._kind = _Kind.AVERAGED
        self._left: dict[int, nn.Parameter] = {}
        self._names = {id(parameter): name for name, parameter in ddp.module.named_parameters()}
        self._handles: list[RemovableHandle] = [ddp.register_forward_hook(self._after_forward)]
        for parameter in ddp.module.parameters():
            if parameter.requires_grad:
                self._handles.append(parameter.register_post_accumulate_grad_hook(self._reached))
        if optimizer is not None:
            self._handles.append(optimizer.register_step_pre_hook(self._before_step))

    def __enter__(self) -> DDPWatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Look no more. A second time does nothing."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _after_forward(self, ddp: nn.Module, inputs: Any, outputs: Any) -> None:
        if not torch.is_grad_enabled():
            return
        self._forwards += 1
        synchronises = self._ddp.require_backward_grad_sync
        if synchronises:
            self._prepared, self._reached_since = True, False
            self._unspent.clear()
        else:
            self._unspent.add(self._forwards)
        if not (synchronises and self._learnt):
            for tensor in tensors(outputs):
                if tensor.requires_grad:
                    tensor.register_hook(partial(self._from_output, self._forwards))  # type: ignore[no-untyped-call]

    def _from_output(self, forward: int, gradient: Tensor) -> None:
        """A backward begins at an output of a marked forward: inner backwards of reentrant checkpointing are its."""
        self._unspent.discard(forward)
        self._from_outputs += 1
        Variable._execution_engine.queue_callback(self._from_output_ends)

    def _from_output_ends(self) -> None:
        self._from_outputs -= 1
        if self._prepared and not self._learnt:
            self._learnt, self._reached_since = True, True

    def _reached(self, parameter: Tensor) -> None:
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._task = task
            self._kind = self._judged()
            if self._kind is _Kind.LEFT and self._when == "backward":
                self._tell(self._names[id(parameter)])
        if self._kind is _Kind.LEFT:
            self._left[id(parameter)] = parameter  # type: ignore[assignment]
        elif self._left and self._kind is _Kind.AVERAGED:
            self._left.pop(id(parameter), None)  # all that was accumulated is averaged

    def _judged(self) -> _Kind:
        """What becomes of the backward that reaches its first parameter now; the reducer has not seen it yet."""
        if not self._learnt:
            return _Kind.AVERAGED if self._prepared and self._from_outputs else _Kind.LEFT
        if self._prepared and not (self._reached_since and self._finished()):
            self._reached_since = True
            return _Kind.AVERAGED
        if self._from_outputs or self._unspent:  # unspent: the loss may have left the forward by another way
            return _Kind.ACCUMULATED
        return _Kind.LEFT

    def _finished(self) -> bool:
        """Whether the reducer has averaged what its last forward asked for."""
        try:
            self._ddp.reducer._check_reducer_finalized()
        except RuntimeError:
            return False
        return True

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        left = [p for p in self._left.values() if p.grad is not None and bool(p.grad.count_nonzero())]
        self._left.clear()
        self._unspent.clear()
        if left and self._when == "step":
            self._tell(self._names[id(left[0])])

    def _tell(self, name: str) -> None:
        self.bypassed += 1
        model = type(self._ddp.module).__name__
        if self._when == "step":
            what = f"the optimizer is about to step with a gradient of {name} of {model} that only rank {_rank()} has"
        elif self._prepared:
            what = (
                f"a backward reached {name} of {model} after DistributedDataParallel had averaged those of its last "
                f"forward: these gradients stay on rank {_rank()}; either the loss passed the wrapper by, or several "
                "forwards need one backward (add their losses)"
            )
        else:
            what = (
                f"a backward reached {name} of {model} without a forward of its DistributedDataParallel: "
                f"the gradients stay those of rank {_rank()}"
            )
        if self._action == "raise":
            raise DistributedError(f"{what}; {_CURE}")
        if self.bypassed == 1:
            warnings.warn(f"{what}; {_CURE}", DistributedWarning, stacklevel=2)


def watch_ddp(
    ddp: nn.Module,
    optimizer: Optimizer | None = None,
    when: Literal["backward", "step"] = "backward",
    action: Literal["warn", "raise"] = "warn",
) -> DDPWatch:
    """Notice gradients that a DistributedDataParallel does not average, because their loss passed it by.

    `when="backward"` tells as soon as such a backward reaches a parameter. `when="step"` tells before a step of
    `optimizer`, if DDP has not averaged these gradients by then. `action="warn"` warns once with DistributedWarning,
    `"raise"` raises DistributedError, in the backward or in the step. Nothing is sent to other ranks: each watches
    itself.

    It knows what DDP does: one backward is averaged for every forward with gradients, whatever it starts from; a
    second one is not. Accumulation under `no_sync`, outputs that are not used, several forwards before one backward,
    reentrant checkpointing and forwards without gradients are no faults. A backward beside a forward under `no_sync`
    that still waits for its own is taken for that. `ddp.forward(...)` called directly, which runs no hooks, is not
    seen. A loop with `sync_gradients` needs no watch.

    Returns a watch to `remove()`. Raises DistributedError where there is nothing to watch.
    """
    wrapper = checked_ddp(ddp, "watch_ddp")
    if when not in ("backward", "step") or action not in ("warn", "raise"):
        raise DistributedError(
            f'watch_ddp got when={when!r} and action={action!r}: give "backward" or "step", and "warn" or "raise"'
        )
    inner = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps optimizers
    if when == "step" and not isinstance(inner, Optimizer):
        raise DistributedError(
            f'watch_ddp got when="step" and {type(inner).__name__} as optimizer: give the optimizer'
        )
    return DDPWatch(wrapper, inner, when, action)


def call_through_ddp(ddp: nn.Module, method: str | Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run a method of the model inside a DistributedDataParallel through the wrapper's forward.

    `method` is a name, or a function that takes the inner model first: `call_through_ddp(ddp, "compute_loss", batch)`,
    `call_through_ddp(ddp, lambda model: loss(model.lm_head.weight, hidden))`. Returns what it returns. The gradients
    of one backward from there are averaged, in buckets and beside the backward, as after `ddp(...)`; buffers and
    devices are dealt with as there, too. The wrapper's hooks run, those of the inner model do not, unless the method
    calls the model. Nothing is left behind, also where the method raises.

    Raises DistributedError where `ddp` is none, or its model has no such method.
    """
    wrapper = checked_ddp(ddp, "call_through_ddp")
    inner = wrapper.module
    function = getattr(inner, method, None) if isinstance(method, str) else partial(method, inner)
    if not callable(function):
        raise DistributedError(f"{type(inner).__name__} has no method {method!r}: give the name of one, or a function")
    modules = vars(wrapper)["_modules"]

    def run(*args: Any, **kwargs: Any) -> Any:
        modules["module"] = inner
        return function(*args, **kwargs)

    modules["module"] = _Detour(inner, run)
    try:
        return wrapper(*args, **kwargs)
    finally:
        modules["module"] = inner


class _Detour(nn.Module):
    """Stands in for the inner model from the call of the wrapper to that of the method."""

    def __init__(self, inner: nn.Module, run: Callable[..., Any]) -> None:
        super().__init__()
        vars(self).update(forward=run, named_modules=inner.named_modules)  # buffers are those of the model


def checked_ddp(ddp: Any, caller: str) -> DistributedDataParallel:
    """The wrapper, if it is one. Raises DistributedError."""
    if isinstance(ddp, DistributedDataParallel):
        return ddp
    compiled = isinstance(getattr(ddp, "_orig_mod", None), DistributedDataParallel)
    advice = "give what was compiled" if compiled else "give the DistributedDataParallel itself, not the model inside"
    raise DistributedError(f"{caller} got a {type(ddp).__name__}: {advice}")


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0
