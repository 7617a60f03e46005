"""Put one call of a cut block into autograd's graph, as one node."""

from __future__ import annotations

import sys
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.long_sequences.cut_call import CutCall
from ckpt_surgery.long_sequences.parked import ParkedTiles
from ckpt_surgery.torch_names import keeps_graph, use_counts


class CutFunction(torch.autograd.Function):
    """The call as one node of the graph, which saves only the block's input, in place or on the host."""

    @staticmethod
    def forward(ctx: Any, call: CutCall, given: Tensor, *trained: nn.Parameter) -> Tensor:
        ctx.call, ctx.trained, ctx.parked = call, trained, None
        ctx.like = given.new_empty(0), given.shape
        if call.transport is None or call.taken is not None:
            ctx.save_for_backward(given)
        else:
            ctx.save_for_backward(given.new_empty(0))  # so that a second backward is refused by torch
            ctx.parked = ParkedTiles(call.transport)
            ctx.parked.put_all(given, call.parts)
        ctx.set_materialize_grads(False)
        call.entered()
        made = call.output(partial(_tile, given))
        if ctx.parked is not None:
            ctx.parked.finish()
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Any, ...]:
        if gradient is None:
            return (None,) * (2 + len(ctx.trained))
        is_alone = _holders(gradient) == _holders_of_one(type(gradient))
        if torch.is_grad_enabled():
            raise SurgeryError(
                f"{type(ctx.call.block).__name__} is cut at its attention, which gives no second derivatives "
                "(create_graph=True): call long_context(model, cut=False)"
            )
        (given,), parked = ctx.saved_tensors, ctx.parked
        read = partial(_tile, given) if parked is None else lambda index, part: parked.read(index)
        of_input: Tensor | None = None
        if ctx.needs_input_grad[1]:
            like, shape = ctx.like
            reuses = is_alone and gradient.shape == shape and gradient.dtype == like.dtype and gradient.is_contiguous()
            of_input = gradient if reuses else like.new_empty(shape)
        ctx.call.entered()
        of_trained = ctx.call.gradients(read, gradient, ctx.trained, of_input)
        if not keeps_graph():  # the loss, and with it this node, may live on into the next forward
            ctx.parked = ctx.call.taken = None
        return None, of_input, *of_trained


def _tile(values: Tensor, index: int, part: slice) -> Tensor:
    return values.detach()[:, part]  # torch's module trackers fail on a tensor that requires gradient and has no graph


class _Lone(torch.autograd.Function):
    """A probe that records the references to a gradient that nobody else holds."""

    seen: tuple[int, ...] = ()

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        _Lone.seen = _holders(gradient)
        return gradient


@cache
def _holders_of_one(kind: type) -> tuple[int, ...]:
    with torch.enable_grad():
        _Lone.apply(torch.ones(2, requires_grad=True)).exp().sum().backward()  # type: ignore[no-untyped-call]
    return _Lone.seen


def _holders(tensor: Tensor) -> tuple[int, ...]:
    """Count the references to a tensor from Python and from the engine, and those to its memory."""
    return sys.getrefcount(tensor), *use_counts(tensor), tensor._is_view()
