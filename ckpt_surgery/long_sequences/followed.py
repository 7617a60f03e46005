"""Which operations of a model on its logits are followed without making them, and what becomes of each.

`FOLLOWED` are those between the head and a loss, `REDUCED` those that make a few numbers of the logits of a token. An
operation that is in neither, or is asked for something that is not here, gets real logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ckpt_surgery.long_sequences.head_call import Fused
from ckpt_surgery.long_sequences.noted import LogSoftmax, Noted

Follow = Callable[[Noted, tuple[Any, ...], Mapping[str, Any]], Noted | None]
Reduce = Callable[[Noted, tuple[Any, ...], Mapping[str, Any]], Tensor | None]
_WIDER = {torch.float32, torch.float64}


def _same(noted: Noted, args: tuple[Any, ...], options: Mapping[str, Any]) -> Noted | None:
    return noted if not args and not options else None


def _to_float(noted: Noted, args: tuple[Any, ...], options: Mapping[str, Any]) -> Noted | None:
    return None if args or options else replace(noted, dtype=torch.float32)


def _to_double(noted: Noted, args: tuple[Any, ...], options: Mapping[str, Any]) -> Noted | None:
    return None if args or options else replace(noted, dtype=torch.float64)


def _to(noted: Noted, args: tuple[Any, ...], options: Mapping[str, Any]) -> Noted | None:
    given = [*args, *(options[name] for name in ("device", "dtype") if name in options)]
    if len(args) > 2 or options.keys() - {"device", "dtype"}:
        return None
    for value in given:
        if isinstance(value, torch.dtype):
            if value not in _WIDER | {noted.dtype}:
                return None
            noted = replace(noted, dtype=value)
        elif not isinstance(value, (str, torch.device)) or torch.device(value) != noted.call.weight.device:
            return None
    return noted


def _viewed(noted: Noted, args: tuple[Any, ...], options: Mapping[str, Any]) -> Noted | None:
    """A view or reshape that leaves the last dimension as it is."""
    shape = args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args
    if options or not shape or not all(type(size) is int for size in shape):
        return None
    if shape[-1] == -1 and noted.hidden.shape[:-1].numel() == torch.Size(shape[:-1]).numel():
        shape = (*shape[:-1], noted.vocabulary)
    if shape[-1] != noted.vocabulary:
        return None
    return replace(noted, hidden=noted.hidden.reshape(*shape[:-1], noted.hidden.shape[-1]))


def _flattened(noted: Noted, args: tuple[Any, ...], options: Mapping[str, Any]) -> Noted | None:
    shape = torch.empty((*noted.hidden.shape[:-1], noted.vocabulary), device="meta").flatten(*args, **options).shape
    return _viewed(noted, tuple(shape), {})


def _indexed(noted: Noted, args: tuple[Any, ...], options: Mapping[str, Any]) -> Noted | None:
    """Slices, positions and masks of tokens; nothing of the vocabulary."""
    index = args[0] if isinstance(args[0], tuple) else (args[0],)
    taken = 0
    for part in index:
        if part is Ellipsis:
            continue
        if isinstance(part, Tensor) and type(part) is Tensor and not part.is_floating_point():
            taken += part.dim() if part.dtype in (torch.bool, torch.uint8) else 1
        elif isinstance(part, slice) or type(part) is int:
            taken += 1
        else:
            return None
    dimensions = noted.hidden.dim()
    ends = Ellipsis in [part for part in index if not isinstance(part, Tensor)] and index[-1] is not Ellipsis
    if taken > dimensions or ((ends or taken == dimensions) and not _whole(index[-1])):
        return None
    return replace(noted, hidden=noted.hidden[args[0]])


def _whole(part: Any) -> bool:
    return isinstance(part, slice) and part == slice(None)


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and value != 0 else None


def _multiplied(noted: Noted, args: tuple[Any, ...], options: Mapping[str, Any]) -> Noted | None:
    factor = _number(args[0]) if len(args) == 1 and not options else None
    return None if factor is None else noted.scaled(factor)


def _divided(noted: Noted, args: tuple[Any, ...], options: Mapping[str, Any]) -> Noted | None:
    divisor = _number(args[0]) if len(args) == 1 and not options else None
    return None if divisor is None else noted.scaled(1 / divisor)


def _negated(noted: Noted, args: tuple[Any, ...], options: Mapping[str, Any]) -> Noted | None:
    return None if args or options else noted.scaled(-1.0)


def _tanh(noted: Noted, args: tuple[Any, ...], options: Mapping[str, Any]) -> Noted | None:
    plain = not args and not options and not noted.capped and noted.log is None
    return replace(noted, capped=True) if plain else None


def _log_softmax(noted: Noted, args: tuple[Any, ...], options: Mapping[str, Any]) -> Noted | None:
    given = _bound(("dim", "_stacklevel", "dtype"), args, options)
    if given is None or noted.log is not None or not _last(noted, given.get("dim")):
        return None
    dtype = given.get("dtype") or noted.dtype
    return replace(noted, log=LogSoftmax(), dtype=dtype) if dtype in _WIDER | {noted.dtype} else None


def _added(noted: Noted, args: tuple[Any, ...], options: Mapping[str, Any]) -> Noted | None:
    """A bias for each entry of the vocabulary that is no parameter."""
    other = args[0] if len(args) == 1 and not options else None
    if (
        noted.capped
        or noted.log is not None
        or type(other) is not Tensor
        or other.requires_grad
        or other.shape[-1:] != (noted.vocabulary,)
    ):
        return None
    if other.numel() != noted.vocabulary or other.dim() > noted.hidden.dim():
        return None
    other = other.reshape(-1).to(noted.call.weight.device, noted.call.weight.dtype)
    return replace(noted, bias=other if noted.bias is None else noted.bias + other)


def cross_entropy(noted: Noted, args: tuple[Any, ...], options: Mapping[str, Any]) -> Tensor | None:
    """F.cross_entropy of the logits, with its arguments after the first; None where it cannot be fused."""
    return None if noted.log is not None else _loss(noted, *args, **options)


def _loss(
    noted: Noted,
    target: Any,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor | None:
    """The arguments are those of F.cross_entropy."""
    plain = size_average is None and reduce is None and 0 <= label_smoothing <= 1
    classes = type(target) is Tensor and not target.is_floating_point() and target.dtype != torch.bool
    if not plain or not classes or reduction not in ("mean", "sum", "none"):
        return None
    if noted.hidden.dim() != 2 or target.shape != noted.hidden.shape[:1]:
        return None
    if weight is None:
        loss = noted.loss(target, ignore_index, reduction, label_smoothing)
        return _fused(noted, loss, Fused.OURS)
    weighted = None if label_smoothing else noted.weighted_loss(target, weight, ignore_index, reduction)
    return None if weighted is None else _fused(noted, weighted, Fused.TORCH)


def _nll(noted: Noted, args: tuple[Any, ...], options: Mapping[str, Any]) -> Tensor | None:
    """F.nll_loss of a log-softmax."""
    given = _bound(("target", "weight", "size_average", "ignore_index", "reduce", "reduction"), args, options)
    if noted.log is None or noted.times != 1.0 or given is None or given.get("weight") is not None:
        return None
    return _loss(replace(noted, log=None), **given)


def _fused(noted: Noted, loss: Tensor, way: Fused) -> Tensor:
    noted.call.fused = True
    noted.call.notify(way)
    return loss


def _gathered(noted: Noted, args: tuple[Any, ...], options: Mapping[str, Any]) -> Tensor | None:
    """Of a log-softmax, one entry for each token."""
    given = _bound(("dim", "index"), args, options)
    index = None if given is None else given.get("index")
    if noted.log is None or given is None or type(index) is not Tensor or not _last(noted, given.get("dim")):
        return None
    if index.shape != (*noted.hidden.shape[:-1], 1) or index.dtype != torch.long:
        return None
    losses = noted.statistics(index[..., 0]).losses
    return (losses * -noted.times).to(noted.dtype)[..., None]


def _summed(noted: Noted, args: tuple[Any, ...], options: Mapping[str, Any]) -> Tensor | None:
    """The sum of a log-softmax over the vocabulary."""
    given = _bound(("dim", "keepdim", "dtype"), args, options)
    if noted.log is None or given is None or not _last(noted, given.get("dim")):
        return None
    _, normalisers, totals = noted.statistics()
    total = (totals - noted.vocabulary * normalisers) * noted.times
    total = total.to(given.get("dtype") or noted.dtype)
    return total[..., None] if given.get("keepdim") else total


def _averaged(noted: Noted, args: tuple[Any, ...], options: Mapping[str, Any]) -> Tensor | None:
    total = _summed(noted, args, options)
    return None if total is None else total / noted.vocabulary


def _logsumexp(noted: Noted, args: tuple[Any, ...], options: Mapping[str, Any]) -> Tensor | None:
    given = _bound(("dim", "keepdim"), args, options)
    if noted.log is not None or given is None or not _last(noted, given.get("dim")):
        return None
    normalisers = noted.statistics().normalisers.to(noted.dtype)
    return normalisers[..., None] if given.get("keepdim") else normalisers


def _last(noted: Noted, dimension: Any) -> bool:
    """Whether that names the vocabulary and nothing else."""
    if isinstance(dimension, (tuple, list)) and len(dimension) == 1:
        (dimension,) = dimension
    return type(dimension) is int and dimension in (-1, noted.hidden.dim() - 1)


def _bound(names: tuple[str, ...], args: tuple[Any, ...], options: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments by their names; None where there are others."""
    if len(args) > len(names) or not set(options) <= set(names[len(args) :]):
        return None
    return {**dict(zip(names, args, strict=False)), **options}


FOLLOWED: Mapping[Any, Follow] = {
    Tensor.float: _to_float,
    Tensor.double: _to_double,
    Tensor.to: _to,
    Tensor.contiguous: _same,
    Tensor.clone: _same,
    Tensor.view: _viewed,
    Tensor.reshape: _viewed,
    Tensor.flatten: _flattened,
    torch.flatten: _flattened,
    Tensor.__getitem__: _indexed,
    Tensor.mul: _multiplied,
    Tensor.__mul__: _multiplied,
    Tensor.__rmul__: _multiplied,
    torch.mul: _multiplied,
    Tensor.div: _divided,
    Tensor.__truediv__: _divided,
    torch.div: _divided,
    Tensor.neg: _negated,
    Tensor.__neg__: _negated,
    torch.neg: _negated,
    Tensor.tanh: _tanh,
    torch.tanh: _tanh,
    Tensor.add: _added,
    Tensor.__add__: _added,
    torch.add: _added,
    Tensor.log_softmax: _log_softmax,
    torch.log_softmax: _log_softmax,
    F.log_softmax: _log_softmax,
}
"""What may lie between the head and the loss."""


REDUCED: Mapping[Any, Reduce] = {
    F.cross_entropy: cross_entropy,
    F.nll_loss: _nll,
    Tensor.gather: _gathered,
    torch.gather: _gathered,
    Tensor.sum: _summed,
    torch.sum: _summed,
    Tensor.mean: _averaged,
    torch.mean: _averaged,
    Tensor.logsumexp: _logsumexp,
    torch.logsumexp: _logsumexp,
}
"""What ends the way from the head to a loss: it needs numbers, and they are computed without logits."""
