"""Logits that are not there: what a linear head returns in a training step, until something needs their values.

1. A loss that is `F.cross_entropy` of them is computed from the hidden states, a chunk of logits at a time.
2. What lies between head and loss (casts, views, scale, softcap, a bias) is noted, and becomes part of that loss.
3. Everything else makes the logits, with the operations of the model's own code, in its order: as without this.

Which calls of a head return them is in `fused_head`, and what is followed in `followed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.long_sequences.followed import FOLLOWED, REDUCED
from ckpt_surgery.long_sequences.head_call import Made
from ckpt_surgery.long_sequences.noted import Noted
from ckpt_surgery.torch_names import DisableTorchFunctionSubclass, make_wrapper_subclass, tree_map


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
        logits: LazyLogits = make_wrapper_subclass(LazyLogits, shape, dtype=noted.dtype, device=device)
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
            if func in _HOOKS and noted.call.fused:
                _refuse_hook(*args[1:], *options.values())
            if func in _ABOUT or (func in _HOOKS and noted.call.fused):
                with DisableTorchFunctionSubclass():
                    return func(*args, **options)
            if not noted.call.made:
                if func in REDUCED:
                    numbers = REDUCED[func](noted, args[1:], options)
                    if numbers is not None:
                        return numbers
                elif func in FOLLOWED:
                    later = FOLLOWED[func](noted, args[1:], options)
                    if later is not None:
                        step = _Repeat(func, args[1:], options)
                        return LazyLogits.of(replace(later, steps=(*noted.steps, step)), logits)
        if func is torch.autograd.grad:
            _refuse_gradient(args[1] if isinstance(args[1], (tuple, list)) else args[1:2])
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
            values = _replayed(ctx.noted, cast(Tensor, hidden), cast(Tensor, weight), bias)
        wanted = [tensor for tensor in given if tensor is not None and tensor.requires_grad]
        gradients = iter(torch.autograd.grad(values, wanted, gradient, create_graph=twice))
        return None, *(next(gradients) if tensor is not None and tensor.requires_grad else None for tensor in given)


_NO_GRADIENT = (
    "the loss of these logits was computed without them, so that no gradient comes to them: undo the fused loss to "
    "see it, or put a hook on them before their loss is computed"
)


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


def _refuse_gradient(inputs: Iterable[Any]) -> None:
    """Raise SurgeryError where the gradient of logits is asked for that a fused loss has gone around."""
    calls = [tensor._noted.call for tensor in inputs if isinstance(tensor, LazyLogits)]
    if any(call.fused and not call.made for call in calls):
        raise SurgeryError(_NO_GRADIENT)


def _refuse_hook(hook: Any = None) -> None:
    """Raise SurgeryError, unless it only waits for the first output: those of FSDP2 and of the guard do."""
    if (_home_of(hook) or "").partition(".")[0] not in _WAITING:
        raise SurgeryError(_NO_GRADIENT)


def _home_of(hook: Any) -> str | None:
    """The module in which a hook was written."""
    while isinstance(hook, partial):
        hook = hook.func
    return getattr(hook, "__module__", None)


def _made(given: Any, func: Any) -> Any:
    name = getattr(func, "__name__", str(func))
    return tree_map(lambda value: _value(value, name), given)


_WAITING = ("torch", __name__.partition(".")[0])
"""Packages whose hooks wait at every output of a model for the first that the backward reaches: the loss is one."""
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
