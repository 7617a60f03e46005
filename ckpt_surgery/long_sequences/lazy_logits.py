"""Logits that are never made: a linear head returns them in a training step, until something needs their values.

1. A loss that is `F.cross_entropy` of them is computed from the hidden states, a chunk of logits at a time.
2. What lies between head and loss (casts, views, scale, softcap, a bias) is noted, and becomes part of that loss.
3. Everything else makes the logits, with the operations of the model's own code, in its order: as without this.

Which calls of a head return them is in `fused_head`, and the losses themselves in `noted`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.long_sequences.noted import LogSoftmax, Noted
from ckpt_surgery.torch_names import DisableTorchFunctionSubclass, make_wrapper_subclass, tree_map

_WIDER = {torch.float32, torch.float64}


class LazyLogits(Tensor):
    """A tensor of logits, (..., vocabulary), without memory, with the real one's shape, dtype, device and gradients.

    `computed()` makes the real logits, once. Any operation that a fused loss cannot follow works on those.
    """

    _noted: Noted
    _before: LazyLogits | None
    _computed: Tensor | None

    @staticmethod
    def of(noted: Noted, before: LazyLogits | None = None) -> LazyLogits:
        """Return the logits after these steps; `before` are those before the last one."""
        call = noted.call
        logits: LazyLogits = _Graph.apply(noted, call.hidden, call.weight, call.bias)  # type: ignore[no-untyped-call]
        logits._before = before
        return logits

    def computed(self) -> Tensor:
        """Make the logits themselves, with their graph, as the head and the steps after it do."""
        if self._computed is None:
            noted = self._noted
            with torch.enable_grad():
                if self._before is None:
                    self._computed = noted.call.logits()
                else:  # of those before, so that what shares memory with them goes on sharing it
                    self._computed = noted.steps[-1](self._before.computed())
        return self._computed

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        logits = args[0] if args and isinstance(args[0], LazyLogits) else None
        if logits is not None:
            noted = logits._noted
            if func in _HOOKS and noted.call.fused:
                _refuse_hook(*args[1:], *options.values())
            if func in _ABOUT or (func in _HOOKS and noted.call.fused):
                with DisableTorchFunctionSubclass():
                    return func(*args, **options)
            if not noted.call.made and func in FOLLOWED:
                later = _followed(FOLLOWED[func], noted, args[1:], options)
                if isinstance(later, Noted):
                    step = partial(_repeated, func, args[1:], options)
                    return LazyLogits.of(replace(later, steps=(*noted.steps, step)), logits)
                if later is not None:
                    return later
        if func is torch.autograd.grad:
            _refuse_gradient(args[1] if isinstance(args[1], (tuple, list)) else args[1:2])
        name = getattr(func, "__name__", str(func))
        return func(*_made(args, name), **_made(options, name))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Make the logits for what went past `__torch_function__`; autograd has taken note of it already."""
        if func._schema.is_mutable:
            raise SurgeryError(
                f"{func} writes, below autograd, into logits that were not made: undo the fused loss, or take a copy "
                "of the logits first"
            )
        name = func.overloadpacket.__name__
        with torch.no_grad():
            return func(*_made(args, name), **_made(kwargs or {}, name))


class _Graph(torch.autograd.Function):
    """A function that connects lazy logits with their sources, for gradients taken outside of the fused loss."""

    @staticmethod
    def forward(ctx: Any, noted: Noted, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.noted = noted
        ctx.save_for_backward(hidden, weight, bias)
        shape = (*noted.hidden.shape[:-1], noted.vocabulary)
        logits: LazyLogits = make_wrapper_subclass(LazyLogits, shape, dtype=noted.dtype, device=weight.device)
        logits._noted, logits._before, logits._computed = noted, None, None
        return logits

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        twice = torch.is_grad_enabled()  # create_graph=True
        with torch.enable_grad():
            given = [
                tensor
                if tensor is None
                else tensor.view_as(tensor)  # not the weight that tied embeddings have made the hidden states of
                if twice
                else tensor.detach().requires_grad_(needed)
                for tensor, needed in zip(ctx.saved_tensors, ctx.needs_input_grad[1:], strict=True)
            ]
            hidden, weight, bias = given
            values = ctx.noted.call.product(cast(Tensor, hidden), cast(Tensor, weight), bias)
            for step in ctx.noted.steps:
                values = step(values)
        wanted = [tensor for tensor in given if tensor is not None and tensor.requires_grad]
        gradients = iter(torch.autograd.grad(values, wanted, gradient, create_graph=twice))
        return None, *(next(gradients) if tensor is not None and tensor.requires_grad else None for tensor in given)


def _repeated(func: Callable[..., Tensor], args: tuple[Any, ...], options: dict[str, Any], values: Tensor) -> Tensor:
    return func(values, *args, **options)


def _made(given: Any, function: str) -> Any:
    """Put real logits in the place of all that are not there, because `function` needs them."""

    def real(value: Any) -> Any:
        if not isinstance(value, LazyLogits):
            return value
        value._noted.call.note_made(function)
        return value.computed()

    return tree_map(real, given)


_NO_GRADIENT = (
    "the loss of these logits was computed without them, so that no gradient comes to them: undo the fused loss to "
    "see it, or put a hook on them before their loss is computed"
)
_WAITING = ("torch", __name__.partition(".")[0])
"""Packages whose hooks wait at every output of a model for the first that the backward reaches: the loss is one."""


def _refuse_gradient(inputs: Iterable[Any]) -> None:
    """Raise SurgeryError where the gradient of logits is asked for that a fused loss has gone around."""
    calls = [tensor._noted.call for tensor in inputs if isinstance(tensor, LazyLogits)]
    if any(call.fused and not call.made for call in calls):
        raise SurgeryError(_NO_GRADIENT)


def _refuse_hook(hook: Any = None) -> None:
    """Raise SurgeryError, unless it only waits for the first output: those of FSDP2 and of the guard do."""
    while isinstance(hook, partial):
        hook = hook.func
    if (getattr(hook, "__module__", None) or "").partition(".")[0] not in _WAITING:
        raise SurgeryError(_NO_GRADIENT)


_PROPERTIES = ("shape", "dtype", "device", "ndim", "requires_grad", "is_leaf", "grad_fn", "layout", "is_cuda")
_MORE_PROPERTIES = ("_base", "is_cpu", "is_meta", "is_sparse", "is_quantized", "is_nested")
_METHODS = ("size", "dim", "ndimension", "numel", "nelement", "is_floating_point", "is_complex", "get_device")
_ABOUT = frozenset(
    [getattr(Tensor, name).__get__ for name in (*_PROPERTIES, *_MORE_PROPERTIES)]
    + [getattr(Tensor, name) for name in (*_METHODS, "element_size", "__len__", "__hash__")]
    + [torch.is_floating_point, torch.is_complex, torch.numel]
)
"""What asks about a tensor and not for its values."""
_HOOKS = frozenset([Tensor.register_hook, Tensor.retain_grad])
"""What a wrapper such as FSDP2 leaves on every output; a gradient comes by only where the logits are made."""


# What is followed. Each function below has the arguments of the operation of torch that it stands for, as far as they
# are followed, and returns what it makes of noted logits: `Noted` between the head and the loss, a tensor of a few
# numbers for each token where the way ends, None where the logits have to be made.


def _followed(
    follow: Callable[..., Noted | Tensor | None], noted: Noted, args: tuple[Any, ...], options: Mapping[str, Any]
) -> Noted | Tensor | None:
    try:
        bound = inspect.signature(follow).bind(noted, *args, **options)
    except TypeError:  # an argument that is not followed
        return None
    return follow(*bound.args, **bound.kwargs)


def _same(noted: Noted) -> Noted:
    return noted


def _to(noted: Noted, *args: Any, **options: Any) -> Noted | None:
    if len(args) > 2 or options.keys() - {"device", "dtype"}:
        return None
    for value in (*args, *options.values()):
        if isinstance(value, torch.dtype):
            if value not in _WIDER | {noted.dtype}:
                return None
            noted = replace(noted, dtype=value)
        elif not isinstance(value, (str, torch.device)) or torch.device(value) != noted.call.weight.device:
            return None
    return noted


def _viewed(noted: Noted, *sizes: Any) -> Noted | None:
    """Follow a view or reshape that leaves the last dimension as it is."""
    shape = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    if not shape or not all(type(size) is int for size in shape):
        return None
    if shape[-1] == -1 and noted.hidden.shape[:-1].numel() == torch.Size(shape[:-1]).numel():
        shape = (*shape[:-1], noted.vocabulary)
    if shape[-1] != noted.vocabulary:
        return None
    return replace(noted, hidden=noted.hidden.reshape(*shape[:-1], noted.hidden.shape[-1]))


def _flattened(noted: Noted, *args: Any, **options: Any) -> Noted | None:
    shape = torch.empty((*noted.hidden.shape[:-1], noted.vocabulary), device="meta").flatten(*args, **options).shape
    return _viewed(noted, *shape)


def _indexed(noted: Noted, index: Any) -> Noted | None:
    """Follow slices, positions and masks of tokens; nothing of the vocabulary."""
    parts = index if isinstance(index, tuple) else (index,)
    taken = 0
    for part in parts:
        if type(part) is Tensor and not part.is_floating_point():
            taken += part.dim() if part.dtype in (torch.bool, torch.uint8) else 1
        elif isinstance(part, slice) or type(part) is int:
            taken += 1
        elif part is not Ellipsis:
            return None
    dimensions = noted.hidden.dim()
    ends = any(part is Ellipsis for part in parts) and parts[-1] is not Ellipsis
    whole = isinstance(parts[-1], slice) and parts[-1] == slice(None)
    if taken > dimensions or ((ends or taken == dimensions) and not whole):
        return None
    return replace(noted, hidden=noted.hidden[index])


def _multiplied(noted: Noted, other: Any) -> Noted | None:
    return noted.scaled(float(other)) if type(other) in (int, float) and other != 0 else None


def _divided(noted: Noted, other: Any) -> Noted | None:
    return noted.scaled(1 / other) if type(other) in (int, float) and other != 0 else None


def _added(noted: Noted, other: Any) -> Noted | None:
    """Follow a bias for each entry of the vocabulary that is not a parameter."""
    if noted.capped or noted.log is not None or type(other) is not Tensor or other.requires_grad:
        return None
    size = noted.vocabulary
    if other.shape[-1:] != (size,) or other.numel() != size or other.dim() > noted.hidden.dim():
        return None
    other = other.reshape(-1).to(noted.call.weight.device, noted.call.weight.dtype)
    return replace(noted, bias=other if noted.bias is None else noted.bias + other)


def _tanh(noted: Noted) -> Noted | None:
    return None if noted.capped or noted.log is not None else replace(noted, capped=True)


def _log_softmax(noted: Noted, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Noted | None:
    dtype = dtype or noted.dtype
    if noted.log is not None or not _is_vocabulary(noted, dim) or type(_stacklevel) is not int:
        return None
    return replace(noted, log=LogSoftmax(), dtype=dtype) if dtype in _WIDER | {noted.dtype} else None


def _cross_entropy(
    noted: Noted,
    target: Any,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor | None:
    plain = noted.log is None and size_average is None and reduce is None and 0 <= label_smoothing <= 1
    classes = type(target) is Tensor and not target.is_floating_point() and target.dtype != torch.bool
    if not plain or not classes or reduction not in ("mean", "sum", "none"):
        return None
    if noted.hidden.dim() != 2 or target.shape != noted.hidden.shape[:1]:
        return None
    if weight is None:
        return noted.loss(target, ignore_index, reduction, label_smoothing)
    return None if label_smoothing else noted.weighted_loss(target, weight, ignore_index, reduction)


def _nll_loss(noted: Noted, target: Any, weight: Tensor | None = None, *args: Any, **options: Any) -> Tensor | None:
    if noted.log is None or noted.times != 1.0 or weight is not None:
        return None
    return _cross_entropy(replace(noted, log=None), target, None, *args, **options)


def _gathered(noted: Noted, dim: Any, index: Any) -> Tensor | None:
    """Follow a log-softmax of which one entry is taken for each token."""
    if noted.log is None or type(index) is not Tensor or not _is_vocabulary(noted, dim):
        return None
    if index.shape != (*noted.hidden.shape[:-1], 1) or index.dtype != torch.long:
        return None
    losses = noted.statistics(index[..., 0]).losses
    return (losses * -noted.times).to(noted.dtype)[..., None]


def _summed(noted: Noted, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor | None:
    """Follow the sum of a log-softmax over the vocabulary."""
    if noted.log is None or not _is_vocabulary(noted, dim):
        return None
    _, normalisers, totals = noted.statistics()
    total = (totals - noted.vocabulary * normalisers) * noted.times
    total = total.to(dtype or noted.dtype)
    return total[..., None] if keepdim else total


def _averaged(noted: Noted, *args: Any, **options: Any) -> Tensor | None:
    total = _followed(_summed, noted, args, options)
    return total / noted.vocabulary if isinstance(total, Tensor) else None


def _logsumexp(noted: Noted, dim: Any, keepdim: bool = False) -> Tensor | None:
    if noted.log is not None or not _is_vocabulary(noted, dim):
        return None
    normalisers = noted.statistics().normalisers.to(noted.dtype)
    return normalisers[..., None] if keepdim else normalisers


def _is_vocabulary(noted: Noted, dimension: Any) -> bool:
    """Tell whether that names the last dimension and nothing else."""
    if isinstance(dimension, (tuple, list)) and len(dimension) == 1:
        (dimension,) = dimension
    return type(dimension) is int and dimension in (-1, noted.hidden.dim() - 1)


FOLLOWED: Mapping[Any, Callable[..., Noted | Tensor | None]] = {
    Tensor.float: lambda noted: replace(noted, dtype=torch.float32),
    Tensor.double: lambda noted: replace(noted, dtype=torch.float64),
    Tensor.to: _to,
    **dict.fromkeys((Tensor.contiguous, Tensor.clone), _same),
    **dict.fromkeys((Tensor.view, Tensor.reshape), _viewed),
    **dict.fromkeys((Tensor.flatten, torch.flatten), _flattened),
    Tensor.__getitem__: _indexed,
    **dict.fromkeys((Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.mul), _multiplied),
    **dict.fromkeys((Tensor.div, Tensor.__truediv__, torch.div), _divided),
    **dict.fromkeys((Tensor.neg, Tensor.__neg__, torch.neg), lambda noted: noted.scaled(-1.0)),
    **dict.fromkeys((Tensor.tanh, torch.tanh), _tanh),
    **dict.fromkeys((Tensor.add, Tensor.__add__, torch.add), _added),
    **dict.fromkeys((Tensor.log_softmax, torch.log_softmax, F.log_softmax), _log_softmax),
    F.cross_entropy: _cross_entropy,
    F.nll_loss: _nll_loss,
    **dict.fromkeys((Tensor.gather, torch.gather), _gathered),
    **dict.fromkeys((Tensor.sum, torch.sum), _summed),
    **dict.fromkeys((Tensor.mean, torch.mean), _averaged),
    **dict.fromkeys((Tensor.logsumexp, torch.logsumexp), _logsumexp),
}
