"""Notice losses that bypass a DistributedDataParallel, or run the method that computes them through it.

DDP averages the gradients of one backward for each of its forwards. Any other gradient stays on its rank without a
warning: each rank then trains a model of its own, and that of rank 0 is saved.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, Literal
from weakref import WeakSet, finalize, ref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ckpt_surgery.errors import DistributedError, DistributedWarning
from ckpt_surgery.runtime.tools.containers import tensors
from ckpt_surgery.text import some
from ckpt_surgery.torch_names import CALL_HOOKS, current_graph_task_id, engine, tree_leaves
from ckpt_surgery.undo import UndoableHooks

_CURE = (
    "call the wrapper itself, or call_through_ddp(ddp, method, ...); a loop that must stay as it is needs "
    "sync_gradients(model) before the optimizer's step, and no watch"
)


_Fate = Literal["averaged", "accumulated", "left"]
"""What becomes of one backward's gradients: "accumulated" is meant, under no_sync, and "left" on the rank is not."""


class DDPWatch(UndoableHooks):
    """A watch over every backward that reaches the parameters of one DistributedDataParallel, until `undo`.

    Made by `watch_ddp`; also a context manager. `bypassed` counts the backwards whose gradients were not averaged
    (more than once where reentrant checkpointing runs others inside), or with `when="step"` the optimizer's steps on
    such gradients.
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
        self._prepared = False  # the reducer waits for a backward
        self._reached_since = False  # a backward has reached a parameter since then
        self._learnt = not ddp.static_graph  # a static graph's first reduction depends on the outputs of the forward
        self._running: WeakSet[partial[None]] = WeakSet()  # the backwards that began at a marked output
        self._last_from_outputs = -1
        self._unspent: set[int] = set()  # forwards under no_sync that no backward has come back to
        self._forwards = 0
        self._task = -1
        self._fate: _Fate = "averaged"
        self._left: dict[int, Tensor] = {}
        self._accumulated: dict[int, Tensor] = {}  # reached under no_sync since DDP averaged last
        self._names = {id(parameter): name for name, parameter in ddp.module.named_parameters()}
        super().__init__([ddp.register_forward_hook(self._after_forward)])
        for parameter in ddp.module.parameters():
            if parameter.requires_grad:
                self._handles.append(parameter.register_post_accumulate_grad_hook(self._reached))
        if optimizer is not None:
            self._handles.append(optimizer.register_step_pre_hook(self._before_step))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_running"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _running=WeakSet())

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
        if not synchronises or not self._learnt:
            # DDP learns a static graph from outputs in containers that torch can look into
            for tensor in tensors(outputs) if self._learnt else tree_leaves(outputs):
                if isinstance(tensor, Tensor) and tensor.grad_fn is not None:
                    tensor.register_hook(partial(self._begin_from_output, self._forwards))  # type: ignore[no-untyped-call]

    def _begin_from_output(self, forward: int, gradient: Tensor) -> None:
        """Note that a backward begins at an output of a marked forward; reentrant ones inside belong to it."""
        self._unspent.discard(forward)
        self._last_from_outputs = current_graph_task_id()
        ends = partial(self._end_from_output)  # only the engine holds it, until the backward has ended or failed
        self._running.add(ends)
        engine.queue_callback(ends)

    def _end_from_output(self) -> None:
        if self._prepared and not self._learnt:
            self._learnt, self._reached_since = True, True

    def _reached(self, parameter: Tensor) -> None:
        task = current_graph_task_id()
        if task != self._task:
            self._task = task
            self._fate = self._decide_fate(parameter)
            if self._fate == "left":
                self._report_left(parameter)
            elif self._fate == "averaged":
                self._accumulated.clear()  # also those it will not reach: then DDP still waits
        if self._fate == "left":
            self._left[id(parameter)] = parameter
        elif self._fate == "accumulated":
            self._accumulated[id(parameter)] = parameter
        elif self._left:
            self._left.pop(id(parameter), None)  # all that was accumulated is averaged

    def _decide_fate(self, first: Tensor) -> _Fate:
        """Decide what becomes of a backward as it reaches its first parameter, before the reducer has seen that."""
        if self._prepared and not self._learnt:
            if not self._running:  # a head outside the model is reached before the outputs that it uses
                engine.queue_callback(partial(self._end_first_backward, self._task, first))
            return "averaged"
        if self._prepared and not (self._reached_since and _has_finished(self._ddp)):
            self._reached_since = True
            return "averaged"
        if self._running or self._unspent:  # unspent: the loss may not come from an output
            return "accumulated"
        return "left"

    def _end_first_backward(self, task: int, parameter: Tensor) -> None:
        """Note whether the first backward of a static graph was averaged: only if it came from outputs."""
        if self._last_from_outputs != task:
            self._left[id(parameter)] = parameter
            self._report_left(parameter)

    def _report_left(self, parameter: Tensor) -> None:
        """Report a backward whose gradients are not averaged."""
        if self._when == "step":
            return
        place = f"a backward reached {self._names[id(parameter)]} of {type(self._ddp.module).__name__}"
        if self._prepared:
            what = (
                f"{place} after DistributedDataParallel had averaged those of its last forward: these gradients stay "
                f"on rank {_this_rank()}; either the loss bypassed the wrapper, or several forwards need one "
                "backward (add their losses)"
            )
        else:
            what = (
                f"{place} without a forward of its DistributedDataParallel: the gradients stay those of rank "
                f"{_this_rank()}"
            )
        self._report(f"{what}; {_CURE}")

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._unspent.clear()
        if self._when == "backward":
            return
        place = "the optimizer is about to step with"
        model = type(self._ddp.module).__name__
        if (parameter := self._with_gradient(self._left, optimizer)) is not None:
            name = self._names[id(parameter)]
            self._report(f"{place} a gradient of {name} of {model} that only rank {_this_rank()} has; {_CURE}")
            return
        # a step inside no_sync is meant for this rank alone
        parameter = self._with_gradient(self._accumulated, optimizer)
        if parameter is not None and self._ddp.require_backward_grad_sync:
            self._report(
                f"{place} a gradient of {self._names[id(parameter)]} of {model} that only rank {_this_rank()} has: "
                "every backward since the last average was under no_sync; run the last forward and backward before "
                "each step outside no_sync, also where an epoch ends in the middle of an accumulation; a step that is "
                "meant for one rank belongs inside no_sync"
            )
            return
        if self._prepared and self._learnt and self._reached_since and not _has_finished(self._ddp):
            self._report(
                f"{place} gradients that DistributedDataParallel has not averaged: it still waits for those of other "
                "parameters of its last forward; find_unused_parameters=True looks for what a step does not use, and "
                "ddp_ready(model, batch) names it"
            )

    @staticmethod
    def _with_gradient(reached: dict[int, Tensor], optimizer: Optimizer) -> Tensor | None:
        """Take the parameters of `optimizer` out of `reached`; return the first whose gradient is not all zeros."""
        if not reached:
            return None
        owned = [reached.pop(id(parameter), None) for group in optimizer.param_groups for parameter in group["params"]]
        for parameter in owned:
            gradient = None if parameter is None else parameter.grad
            if gradient is not None and (gradient._values() if gradient.is_sparse else gradient).count_nonzero():
                return parameter
        return None

    def _report(self, text: str) -> None:
        self.bypassed += 1
        if self._action == "raise":
            raise DistributedError(text)
        if self.bypassed == 1:
            warnings.warn(text, DistributedWarning, stacklevel=2)


def watch_ddp(
    ddp: nn.Module,
    optimizer: Optimizer | None = None,
    when: Literal["backward", "step"] = "backward",
    action: Literal["warn", "raise"] = "warn",
) -> DDPWatch:
    """Notice gradients that a DistributedDataParallel does not average, because their loss bypassed it.

    Each rank watches itself; nothing is sent. The watch knows what DDP does: for every forward with gradients it
    averages one backward, whatever that starts from, if it reaches every parameter that DDP waits for; it does not
    average a second one. Accumulation under `no_sync`, unused outputs, several forwards before one backward, reentrant
    checkpointing and forwards without gradients are not reported.

    Not seen: `ddp.forward(...)` called directly, which runs no hooks; parameters that got `requires_grad` after the
    wrapper was made, which DDP does not average either; and what another DistributedDataParallel or `sync_gradients`
    averages (undo the watch there). While the backward of a forward under `no_sync` is still to come, any other
    backward is taken for it, until the next forward that synchronises or the optimizer's step.

    Args:
        ddp: the wrapper itself.
        optimizer: needed for `when="step"`, also as accelerate wraps it.
        when: "backward" reports as soon as such a backward reaches a parameter; "step" reports before a step of
            `optimizer` if DDP has not averaged the gradients by then, also where all were made under `no_sync`. A
            step inside `no_sync` is meant for its rank alone.
        action: "warn" gives one DistributedWarning; "raise" raises DistributedError in the backward or step.

    Returns:
        The watch; `undo()` ends it.

    Raises:
        DistributedError: `ddp` is not a wrapper, or an option is not one of those above.
    """
    wrapper = _checked_ddp(ddp, "watch_ddp")
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

    The gradients of one backward from what it returns are averaged in buckets during the backward, as after
    `ddp(...)`; buffers and devices are handled the same way. The wrapper's hooks run; those of the inner model run
    only if the method calls the model. Nothing is left behind, even if the method raises.

    DDP waits for every parameter, even if the method runs only a part of the model. If DDP still waits when a backward
    has ended, that backward raises DistributedError, which names the parameters that it did not reach: each rank would
    keep gradients of its own. A wrapper made with `find_unused_parameters=True` averages those of a part. A head
    that is called on what this returns, before the one backward, counts as reached.

    A method that raises on one rank tells the others nothing: they wait for it in their backward. If its process ends,
    they raise as soon as its connections close. If it goes on without a collective, they raise after the timeout of
    the group (30 minutes with gloo, 10 with NCCL). If it catches the error and takes the next batch, the ranks average
    gradients of different batches without an error: let it raise, or skip a batch on all ranks.

    What a trainer has put around the model's own forward, such as accelerate's autocast, is not around the method:
    put it there (`with accelerator.autocast():`). Other threads must not call the wrapper meanwhile.

    Args:
        ddp: the wrapper itself.
        method: a name, as in `call_through_ddp(ddp, "compute_loss", batch)`, or a function that takes the inner model
            first, as in `call_through_ddp(ddp, lambda model: loss(model.lm_head.weight, hidden))`.
        args: what the method takes.
        kwargs: what the method takes by name.

    Returns:
        What the method returns.

    Raises:
        DistributedError: `ddp` is not a DistributedDataParallel, or its model has no such method.
    """
    wrapper = _checked_ddp(ddp, "call_through_ddp")
    inner = wrapper.module
    function = getattr(inner, method, None) if isinstance(method, str) else method
    if not callable(function):
        raise DistributedError(f"{type(inner).__name__} has no method {method!r}: give the name of one, or a function")
    modules = vars(wrapper)["_modules"]

    def run(*args: Any, **kwargs: Any) -> Any:
        modules["module"] = inner
        return function(*args, **kwargs) if isinstance(method, str) else function(inner, *args, **kwargs)

    # the wrapper calls a stand-in for the model, which runs the method without the model's hooks; it looks like the
    # model, since hooks of the wrapper may inspect it
    stand_in = object.__new__(type(inner))
    hooks = {name: OrderedDict[int, Any]() for name in CALL_HOOKS}
    vars(stand_in).update({**vars(inner), **hooks, "forward": run, "_compiled_call_impl": None})
    modules["module"] = stand_in
    try:
        outputs = wrapper(*args, **kwargs)
    finally:
        modules["module"] = inner
    finds_unused = wrapper.find_unused_parameters or wrapper.static_graph
    if torch.is_grad_enabled() and wrapper.require_backward_grad_sync and not finds_unused:
        _Awaited(wrapper, outputs)
    return outputs


def _checked_ddp(ddp: Any, caller: str) -> DistributedDataParallel:
    """Return the wrapper, if it is one. Raises DistributedError."""
    if isinstance(ddp, DistributedDataParallel):
        return ddp
    compiled = isinstance(getattr(ddp, "_orig_mod", None), DistributedDataParallel)
    advice = "give what was compiled" if compiled else "give the DistributedDataParallel itself, not the model inside"
    raise DistributedError(f"{caller} got a {type(ddp).__name__}: {advice}")


_REQUEUED = 3
"""How often a callback at the end of a backward queues itself again, to run after those of DistributedDataParallel."""


class _Awaited:
    """A check at the end of a backward: it raises DistributedError if DDP still waits for parameters.

    Only hooks of the outputs hold it, its hooks on parameters go with it, and it does not hold the wrapper: a model
    that keeps an output would keep that alive.
    """

    def __init__(self, ddp: DistributedDataParallel, outputs: Any) -> None:
        self._ddp = ref(ddp)
        self._task = -1
        self._reached: set[int] = set()
        self._handles: list[RemovableHandle] = []
        starts = [tensor for tensor in tensors(outputs) if tensor.grad_fn is not None]
        if not starts:
            return
        reached = self._reached  # the hooks are to hold the set alone
        for parameter in ddp.module.parameters():
            if parameter.requires_grad:
                handle = parameter.register_post_accumulate_grad_hook(lambda p: reached.add(id(p)))
                self._handles.append(handle)
        finalize(self, self._remove, self._handles)
        for tensor in starts:
            tensor.register_hook(self._begins)  # type: ignore[no-untyped-call]

    def _begins(self, gradient: Tensor) -> None:
        task = current_graph_task_id()
        if self._handles and task != self._task:
            self._task = task
            engine.queue_callback(partial(self._ends, _REQUEUED))

    def _ends(self, more_turns: int) -> None:
        if more_turns:
            engine.queue_callback(partial(self._ends, more_turns - 1))
            return
        ddp = self._ddp()
        if ddp is None or not self._reached:  # torch.autograd.grad reaches no parameter
            return
        self._remove(self._handles)
        if _has_finished(ddp):
            return
        missing = [
            name
            for name, parameter in ddp.module.named_parameters()
            if parameter.requires_grad and id(parameter) not in self._reached and name not in ddp.parameters_to_ignore
        ]
        raise DistributedError(
            f"call_through_ddp: the backward gave no gradient to {some(missing)} of {type(ddp.module).__name__}, for "
            f"which DistributedDataParallel still waits: gradients of this step stay those of rank {_this_rank()}; "
            "let the method compute the whole loss and call backward once, or make the wrapper with "
            "find_unused_parameters=True"
        )

    @staticmethod
    def _remove(handles: list[RemovableHandle]) -> None:
        for handle in handles:
            handle.remove()
        handles.clear()


def _has_finished(ddp: DistributedDataParallel) -> bool:
    """Tell whether the reducer has averaged all gradients that it waits for since the last forward."""
    try:
        ddp.reducer._check_reducer_finalized()
    except RuntimeError:
        return False
    return True


def _this_rank() -> int:
    """Return the number of this rank in the whole job; 0 without a process group."""
    return dist.get_rank() if dist.is_initialized() else 0
