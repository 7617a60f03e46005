"""What does not go with reentrant checkpointing, which runs a backward of its own inside that of the model."""

from __future__ import annotations

import traceback
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils.weak import WeakTensorKeyDictionary

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.runtime.tools.model_hook import ModelHook
from ckpt_surgery.runtime.tools.tensors import unseen

_last_backward = WeakTensorKeyDictionary()
"""The backward in which a parameter with hooks got its last gradient from a recompute."""


Parameters = Sequence[tuple[str, nn.Parameter]]
"""The parameters of a block, with their names."""


_graph_of: Callable[[Tensor], Any] = attrgetter("grad_fn")
_backward_hooks_of: Callable[[Tensor], Any] = attrgetter("_backward_hooks")
_accumulation_hooks_of: Callable[[Tensor], Any] = attrgetter("_post_accumulate_grad_hooks")


class _Anchor(torch.autograd.Function):
    """An empty tensor that seems to be made of parameters, and gives them no gradient."""

    @staticmethod
    def forward(ctx: Any, *parameters: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.count = len(parameters)
        return parameters[0].new_empty(0)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        return (None,) * ctx.count


def anchor(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """What makes a block with these parameters part of a backward for them alone, as an argument of its checkpoint.

    Torch would never enter the block then, and its parameters had no gradient: now that is refused. Nothing is done
    for parameters with hooks, which would be called with None, and in process groups, where others may have hooks.
    """
    anchored = _anchored(parameters)
    return [_Anchor.apply(*anchored)] if anchored else []  # type: ignore[no-untyped-call]


def _anchored(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Those of which an anchor is made."""
    if dist.is_available() and dist.is_initialized():
        return []
    return [p for p in parameters if p.requires_grad and p.grad_fn is None and not _is_hooked(p)]


def runs_autograd(error: BaseException) -> bool:
    """Whether an error comes from a call of `torch.autograd.grad` or of a backward."""
    codes = {frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)}
    return not codes.isdisjoint((torch.autograd.grad.__code__, torch.autograd.backward.__code__))


def refuse_in_backward(place: str, parameters: Parameters, results: Sequence[Tensor], *, anchored: bool) -> None:
    """Let the backward of `results` raise SurgeryError where gradients would be lost or hooks would see parts of them.

    `results` are what checkpointing made of the tensors of one call of the block that has `parameters`; they have one
    node in the graph. Where `anchored`, an `anchor` was among the arguments, and hooks that come later would see it.
    """
    node = next(filter(None, map(_graph_of, results)), None)
    if node is not None:
        plain = set(map(id, _anchored(p for _, p in parameters))) if anchored else frozenset()
        node.register_prehook(_refusal(place, parameters, [weakref.ref(tensor) for tensor in results], plain))


def _refusal(
    place: str, parameters: Parameters, results: Sequence[weakref.ref[Tensor]], plain: Collection[int]
) -> Callable[..., None]:
    def refuse(_: Any) -> None:
        if torch.is_grad_enabled():
            raise SurgeryError(
                f"{place} cannot be recomputed: the backward has create_graph=True, and with use_reentrant=True "
                "second derivatives would be lost; use use_reentrant=False"
            )
        if not torch.autograd._is_checkpoint_valid():  # type: ignore[no-untyped-call]
            raise SurgeryError(
                f"{place} cannot be recomputed: torch.autograd.grad, and backward with inputs=, do not go with "
                "use_reentrant=True; use use_reentrant=False"
            )
        watched = [tensor for reference in results if (tensor := reference()) is not None and _is_watched(tensor)]
        if watched and len(results) > 1:
            raise SurgeryError(
                f"{place} returns several tensors, and the gradient of one is watched by a hook or kept: with "
                "use_reentrant=True what reaches it through the others is left out; use use_reentrant=False"
            )
        for name, parameter in parameters if _any_hooked(parameters) else ():
            if _needs_whole(parameter) and parameter.requires_grad:
                if id(parameter) in plain:
                    raise SurgeryError(
                        f"{place} cannot be recomputed: its parameter {name} got a hook after the forward, which "
                        "use_reentrant=True would call too often while steps are checked; register it before the "
                        "forward, or use use_reentrant=False"
                    )
                _refuse_parts(place, f"parameter {name}", parameter)

    return refuse


def _is_watched(tensor: Tensor) -> bool:
    return tensor.retains_grad or bool(tensor._backward_hooks)


def _is_hooked(parameter: Tensor) -> bool:
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def _needs_whole(parameter: Tensor) -> bool:
    """Whether a hook on a parameter has to see its gradient as a whole."""
    hooks = [*(parameter._backward_hooks or {}).values(), *(parameter._post_accumulate_grad_hooks or {}).values()]
    return not all(isinstance(hook, ModelHook) for hook in hooks)


def _any_hooked(parameters: Parameters) -> bool:
    every = [parameter for _, parameter in parameters]
    return any(map(_backward_hooks_of, every)) or any(map(_accumulation_hooks_of, every))


def next_node() -> int:
    """A number that is less than those of all nodes that this thread will add to the graph."""
    with torch.enable_grad(), unseen():
        node = torch.empty(0, requires_grad=True).clone().grad_fn
    assert node is not None
    return node._sequence_nr()


def keeps_graph() -> bool:
    """Whether the backward that runs now may run again."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def refuse_others(place: str, parameters: Parameters, results: Sequence[Tensor], start: int) -> None:
    """Raise SurgeryError where a recompute used what is neither of its block nor an argument, and others do too.

    That is a tensor with a graph from before the recompute, whose own nodes have numbers from `start` on, or a
    parameter with hooks. To be called in a backward, with the `results` of the recompute.
    """
    own = {id(parameter) for _, parameter in parameters}
    for node in _nodes(results):
        leaf = getattr(node, "variable", None)
        if leaf is None and node._sequence_nr() < start:
            raise SurgeryError(
                f"{place} used a tensor with gradient that is no argument of it: with use_reentrant=True the backward "
                "would go through its graph once for each block; use use_reentrant=False, or pass the tensor itself"
            )
        if leaf is not None and id(leaf) not in own and _needs_whole(leaf):
            _refuse_parts(place, f"parameter of shape {tuple(leaf.shape)} from outside of it", leaf)


def _nodes(results: Sequence[Tensor]) -> Iterator[Node]:
    """The nodes through which a backward of `results` would go."""
    pending = [tensor.grad_fn for tensor in results if tensor.grad_fn is not None]
    seen = set(pending)
    while pending:
        node = pending.pop()
        yield node
        following = {following for following, _ in node.next_functions if following is not None} - seen
        seen |= following
        pending += following


def _refuse_parts(place: str, name: str, parameter: Tensor) -> None:
    """Raise SurgeryError where a parameter with hooks gets its gradient in several parts."""
    backward = torch._C._current_graph_task_id()
    with torch.enable_grad():
        node = get_gradient_edge(parameter).node
    elsewhere = torch._C._will_engine_execute_node(node)  # outside of checkpointed blocks
    if elsewhere or (parameter in _last_backward and _last_backward[parameter] == backward):
        raise SurgeryError(
            f"{place} cannot be recomputed: its {name} has a hook and is used more than once, and with "
            "use_reentrant=True the hook would see each part of its gradient by itself; use use_reentrant=False"
        )
    _last_backward[parameter] = backward
