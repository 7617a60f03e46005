"""Logits that are not there: what a linear head returns in a training step, until something needs their values.

1. A loss that is `F.cross_entropy` of them is computed from the hidden states, a chunk of logits at a time.
2. What lies between head and loss (casts, views, scale, softcap, a bias) is noted, and becomes part of that loss.
3. Everything else makes the logits, with the operations of the model's own code, in its order: as without this.

Which calls of a head return them is in `fused_head`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ckpt_surgery.distributed.fused_loss import fused_linear_cross_entropy
from ckpt_surgery.distributed.head_call import Fused, HeadCall, Made
from ckpt_surgery.errors import SurgeryError

Step = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Noted:
    """What the model has done to the logits so far: `steps`, and the same in the terms of a loss.

    The logits are `after * tanh(scale * (hidden @ weight.T) + bias)`, without the tanh where not `capped`, and
    `after` is 1 then. `hidden` is that of the call, in the shape that views have given it.
    """

    call: HeadCall
    steps: tuple[Step, ...]
    hidden: Tensor
    bias: Tensor | None
    dtype: torch.dtype
    scale: float = 1.0
    capped: bool = False
    after: float = 1.0

    @property
    def vocabulary(self) -> int:
        """The size of the last dimension."""
        return self.call.weight.shape[0]

    def scaled(self, factor: float) -> Noted | None:
        """After a multiplication; None where it has no place in the loss."""
        if self.capped:
            return replace(self, after=self.after * factor) if self.after == 1.0 and factor > 0 else None
        return replace(self, scale=self.scale * factor, bias=None if self.bias is None else self.bias * factor)

    def weighted_loss(self, targets: Tensor, classes: Tensor, ignore_index: int, reduction: str) -> Tensor | None:
        """The cross-entropy with a weight for each class, (vocabulary), by torch; None where torch would make logits.

        Torch computes the gradients in the forward, in the dtype of the hidden states, and holds them until the
        backward: ours has no such weights, and needs less memory.
        """
        options: Any = getattr(nn, "LinearCrossEntropyOptions", None)  # since torch 2.13
        weight, hidden = self.call.weight, self.hidden
        alike = {hidden.dtype, weight.dtype, classes.dtype, self.dtype} <= {self.dtype} - {torch.bfloat16, torch.half}
        plain = {type(hidden), type(targets), type(classes)} == {Tensor} and targets.dtype == torch.long
        together = {hidden.device, targets.device, classes.device} == {weight.device}
        if options is None or self.capped or self.call.autocast is not None or not (alike and plain and together):
            return None
        loss: Tensor = F.linear_cross_entropy(
            _scaled(hidden, self.scale),
            weight,
            targets,
            linear_bias=self.bias,
            weight=classes,
            reduction=reduction,
            ignore_index=ignore_index,
            options=options(allow_retain_graph=True),
        )
        return loss

    def loss(self, targets: Tensor, ignore_index: int, reduction: str) -> Tensor:
        """The cross-entropy of the logits, (tokens, vocabulary), against targets, (tokens)."""
        factor = self.scale
        softcap = self.after if self.capped else None
        bias = self.bias
        if softcap is not None:
            factor *= softcap  # the loss divides by it
            bias = None if bias is None else bias * softcap
        losses = fused_linear_cross_entropy(
            _scaled(self.hidden, factor),
            self.call.weight,
            targets,
            bias,
            ignore_index=ignore_index,
            reduction="none" if reduction == "none" else "sum",
            softcap=softcap,
        )
        if reduction == "mean":  # NaN where all labels are ignored, as torch's
            losses = losses / (targets != ignore_index).sum().to(losses.device)
        wide = self.call.autocast is not None and self.dtype != torch.float64
        return losses.to(torch.float32 if wide else self.dtype)


def _scaled(hidden: Tensor, factor: float) -> Tensor:
    return hidden if abs(factor - 1) < 1e-15 else hidden * factor


class LazyLogits(Tensor):
    """A tensor of logits, (..., vocabulary), without memory: shape, dtype, device and gradients are those of the real.

    `computed()` makes the real logits, once. Any operation that a fused loss cannot follow works on those.
    """

    _noted: Noted
    _before: LazyLogits | None
    _computed: Tensor | None

    @staticmethod
    def of(noted: Noted, before: LazyLogits | None = None) -> LazyLogits:
        """The logits after these steps; `before` are those before the last one."""
        call = noted.call
        logits: LazyLogits = _Graph.apply(noted, call.hidden, call.weight, call.bias)  # type: ignore[no-untyped-call]
        logits._before = before
        return logits

    @staticmethod
    def shell(noted: Noted) -> LazyLogits:
        """The same, outside of the graph."""
        shape = (*noted.hidden.shape[:-1], noted.vocabulary)
        device = noted.call.weight.device
        logits: LazyLogits = Tensor._make_wrapper_subclass(LazyLogits, shape, dtype=noted.dtype, device=device)
        logits._noted, logits._before, logits._computed = noted, None, None
        return logits

    def computed(self) -> Tensor:
        """The logits themselves, with their graph, as the head and the steps after it make them."""
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
            if func in _ABOUT or (func in _HOOKS and noted.call.fused):
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args, **options)
            if not noted.call.made:
                if func is F.cross_entropy:
                    loss = _loss(noted, *args[1:], **options)
                    if loss is not None:
                        noted.call.fused = True
                        noted.call.notify(loss[1])
                        return loss[0]
                elif func in _FOLLOWED:
                    later = _FOLLOWED[func](noted, args[1:], options)
                    if later is not None:
                        step = _Repeat(func, args[1:], options)
                        return LazyLogits.of(replace(later, steps=(*noted.steps, step)), logits)
        return func(*_made(args, func), **_made(options, func))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """What comes here went past `__torch_function__`; autograd has taken note of it already."""
        if func._schema.is_mutable:
            raise SurgeryError(
                f"{func} writes, below autograd, into logits that were not made: undo the fused loss, or take a copy "
                "of the logits first"
            )
        name = func.overloadpacket.__name__
        with torch.no_grad():
            return func(
                *tree_map(lambda v: _value(v, name), args), **tree_map(lambda v: _value(v, name), kwargs or {})
            )


class _Graph(torch.autograd.Function):
    """Connects lazy logits with what they would be made of, for those who take their gradient past all this."""

    @staticmethod
    def forward(ctx: Any, noted: Noted, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.noted = noted
        ctx.save_for_backward(hidden, weight, bias)
        return LazyLogits.shell(noted)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        with torch.enable_grad():
            given = [
                None if tensor is None else tensor.detach().requires_grad_(needed)
                for tensor, needed in zip(ctx.saved_tensors, ctx.needs_input_grad[1:], strict=True)
            ]
            hidden, weight, bias = given
            values = _replayed(ctx.noted, cast(Tensor, hidden), cast(Tensor, weight), bias)
        wanted = [tensor for tensor in given if tensor is not None and tensor.requires_grad]
        gradients = iter(torch.autograd.grad(values, wanted, gradient))
        return None, *(next(gradients) if tensor is not None and tensor.requires_grad else None for tensor in given)


@dataclass(frozen=True, slots=True)
class _Repeat:
    """One operation of the model on its logits, to be done again on the real ones."""

    func: Callable[..., Tensor]
    args: tuple[Any, ...]
    options: Mapping[str, Any]

    def __call__(self, values: Tensor) -> Tensor:
        return self.func(values, *self.args, **self.options)


def _replayed(noted: Noted, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    values = noted.call.product(hidden, weight, bias)
    for step in noted.steps:
        values = step(values)
    return values


def _value(value: Any, name: str) -> Any:
    if not isinstance(value, LazyLogits):
        return value
    call = value._noted.call
    if not call.made:
        call.notify(Made(name, call.fused))
    call.made = True
    return value.computed()


def _made(given: Any, func: Any) -> Any:
    name = getattr(func, "__name__", str(func))
    return tree_map(lambda value: _value(value, name), given)


def _loss(
    noted: Noted,
    target: Any,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> tuple[Tensor, Fused] | None:
    """The arguments are those of F.cross_entropy; None where the loss cannot be fused."""
    plain = size_average is None and reduce is None and label_smoothing == 0.0
    classes = type(target) is Tensor and not target.is_floating_point() and target.dtype != torch.bool
    if not plain or not classes or reduction not in ("mean", "sum", "none"):
        return None
    if noted.hidden.dim() != 2 or target.shape != noted.hidden.shape[:1]:
        return None
    if weight is None:
        return noted.loss(target, ignore_index, reduction), Fused.OURS
    loss = noted.weighted_loss(target, weight, ignore_index, reduction)
    return None if loss is None else (loss, Fused.TORCH)


Follow = Callable[[Noted, tuple[Any, ...], Mapping[str, Any]], Noted | None]


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
            if value not in (noted.dtype, torch.float32, torch.float64):
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


def _tanh(noted: Noted, args: tuple[Any, ...], options: Mapping[str, Any]) -> Noted | None:
    return None if args or options or noted.capped else replace(noted, capped=True)


def _added(noted: Noted, args: tuple[Any, ...], options: Mapping[str, Any]) -> Noted | None:
    """A bias for each entry of the vocabulary that is no parameter."""
    other = args[0] if len(args) == 1 and not options else None
    if noted.capped or type(other) is not Tensor or other.requires_grad or other.shape[-1:] != (noted.vocabulary,):
        return None
    if other.numel() != noted.vocabulary or other.dim() > noted.hidden.dim():
        return None
    other = other.reshape(-1).to(noted.call.weight.device, noted.call.weight.dtype)
    return replace(noted, bias=other if noted.bias is None else noted.bias + other)


_FOLLOWED: dict[Any, Follow] = {
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
    Tensor.tanh: _tanh,
    torch.tanh: _tanh,
    Tensor.add: _added,
    Tensor.__add__: _added,
    torch.add: _added,
}
"""What may lie between the head and the loss."""

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
