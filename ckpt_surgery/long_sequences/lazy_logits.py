"""Logits that are never made: a linear head returns them in a training step, until something needs their values.

1. A loss that is `F.cross_entropy` of them is computed from the hidden states, a chunk of logits at a time.
2. What lies between head and loss (casts, views, scale, softcap, a bias) is recorded, and becomes part of that loss.
3. Everything else makes the logits, by the operations of the model's own code in their order, as without this.

`fused_head` decides which calls of a head return them; how operations and losses are followed is in `logits_formula`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.long_sequences.logits_formula import LogitsFormula
from ckpt_surgery.torch_names import DisableTorchFunctionSubclass, make_wrapper_subclass, tree_map


class LazyLogits(Tensor):
    """A tensor of logits, (..., vocabulary), without memory, with the real one's shape, dtype, device and gradients.

    `computed()` makes the real logits, once. Any operation that a fused loss cannot follow works on those.
    """

    _formula: LogitsFormula
    _before: LazyLogits | None
    _computed: Tensor | None

    @staticmethod
    def of(formula: LogitsFormula, before: LazyLogits | None = None) -> LazyLogits:
        """Return the logits after these steps; `before` are those before the last one."""
        call = formula.call
        logits: LazyLogits = _Graph.apply(formula, call.hidden, call.weight, call.bias)  # type: ignore[no-untyped-call]
        logits._before = before
        return logits

    def computed(self) -> Tensor:
        """Make the logits themselves, with their graph, as the head and the steps after it do."""
        if self._computed is None:
            formula = self._formula
            with torch.enable_grad():
                if self._before is None:
                    self._computed = formula.call.logits()
                else:  # from those before, so that views go on sharing their memory
                    self._computed = formula.steps[-1](self._before.computed())
        return self._computed

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        logits = args[0] if args and isinstance(args[0], LazyLogits) else None
        if logits is not None:
            formula = logits._formula
            if func in _HOOKS and formula.call.fused:
                _refuse_hook(*args[1:], *options.values())
            if func in _ABOUT or (func in _HOOKS and formula.call.fused):
                with DisableTorchFunctionSubclass():
                    return func(*args, **options)
            if not formula.call.made and func in FOLLOWED:
                following = formula.followed(FOLLOWED[func], args[1:], options)
                if isinstance(following, LogitsFormula):
                    step = partial(_repeated, func, args[1:], options)
                    return LazyLogits.of(replace(following, steps=(*formula.steps, step)), logits)
                if following is not None:
                    return following
        if func is torch.autograd.grad:
            inputs = args[1] if isinstance(args[1], (tuple, list)) else args[1:2]
            calls = [each._formula.call for each in inputs if isinstance(each, LazyLogits)]
            if any(call.fused and not call.made for call in calls):  # a fused loss has gone around them
                raise SurgeryError(_NO_GRADIENT)
        name = getattr(func, "__name__", str(func))
        return func(*_made(args, name), **_made(options, name))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Make the logits for an operator that bypassed `__torch_function__`; autograd has recorded it already."""
        if func._schema.is_mutable:
            raise SurgeryError(
                f"{func} writes, below autograd, into logits that were not made: undo the fused loss, or take a copy "
                "of the logits first"
            )
        name = func.overloadpacket.__name__
        with torch.no_grad():
            return func(*_made(args, name), **_made(kwargs or {}, name))


class _Graph(torch.autograd.Function):
    """The node between lazy logits and their sources, for gradients that do not come from a fused loss."""

    @staticmethod
    def forward(ctx: Any, formula: LogitsFormula, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.formula = formula
        ctx.save_for_backward(hidden, weight, bias)
        shape = (*formula.hidden.shape[:-1], formula.vocabulary)
        logits: LazyLogits = make_wrapper_subclass(LazyLogits, shape, dtype=formula.dtype, device=weight.device)
        logits._formula, logits._before, logits._computed = formula, None, None
        return logits

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        twice = torch.is_grad_enabled()  # create_graph=True
        with torch.enable_grad():
            given = [
                tensor
                if tensor is None
                else tensor.view_as(tensor)  # not the weight itself: tied embeddings make the hidden states from it
                if twice
                else tensor.detach().requires_grad_(needed)
                for tensor, needed in zip(ctx.saved_tensors, ctx.needs_input_grad[1:], strict=True)
            ]
            hidden, weight, bias = given
            values = ctx.formula.call.product(cast(Tensor, hidden), cast(Tensor, weight), bias)
            for step in ctx.formula.steps:
                values = step(values)
        wanted = [tensor for tensor in given if tensor is not None and tensor.requires_grad]
        gradients = iter(torch.autograd.grad(values, wanted, gradient, create_graph=twice))
        return None, *(next(gradients) if tensor is not None and tensor.requires_grad else None for tensor in given)


def _repeated(func: Callable[..., Tensor], args: tuple[Any, ...], options: dict[str, Any], values: Tensor) -> Tensor:
    return func(values, *args, **options)


def _made(given: Any, function: str) -> Any:
    """Replace lazy logits by real ones, because `function` needs them."""

    def real(value: Any) -> Any:
        if not isinstance(value, LazyLogits):
            return value
        value._formula.call.note_made(function)
        return value.computed()

    return tree_map(real, given)


_NO_GRADIENT = (
    "the loss of these logits was computed without them, so that no gradient comes to them: undo the fused loss to "
    "see it, or put a hook on them before their loss is computed"
)
_WAITING = ("torch", __name__.partition(".")[0])
"""Packages whose hooks wait at every output for the first that the backward reaches: the loss is one too."""


def _refuse_hook(hook: Any = None) -> None:
    """Raise SurgeryError unless a hook only waits for the first output, as those of FSDP2 and the guard do."""
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
"""Functions that ask about a tensor and not for its values."""
_HOOKS = frozenset([Tensor.register_hook, Tensor.retain_grad])
"""Functions by which a wrapper such as FSDP2 hooks every output; the hooks see a gradient only if logits are made."""
FOLLOWED: Mapping[Any, Callable[..., LogitsFormula | Tensor | None]] = {
    Tensor.float: lambda formula: replace(formula, dtype=torch.float32),
    Tensor.double: lambda formula: replace(formula, dtype=torch.float64),
    Tensor.to: LogitsFormula.to,
    **dict.fromkeys((Tensor.contiguous, Tensor.clone), lambda formula: formula),
    **dict.fromkeys((Tensor.view, Tensor.reshape), LogitsFormula.viewed),
    **dict.fromkeys((Tensor.flatten, torch.flatten), LogitsFormula.flattened),
    Tensor.__getitem__: LogitsFormula.indexed,
    **dict.fromkeys((Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.mul), LogitsFormula.multiplied),
    **dict.fromkeys((Tensor.div, Tensor.__truediv__, torch.div), LogitsFormula.divided),
    **dict.fromkeys((Tensor.neg, Tensor.__neg__, torch.neg), lambda formula: formula.scaled(-1.0)),
    **dict.fromkeys((Tensor.tanh, torch.tanh), LogitsFormula.tanh),
    **dict.fromkeys((Tensor.add, Tensor.__add__, torch.add), LogitsFormula.added),
    **dict.fromkeys((Tensor.log_softmax, torch.log_softmax, F.log_softmax), LogitsFormula.log_softmax),
    F.cross_entropy: LogitsFormula.cross_entropy,
    F.nll_loss: LogitsFormula.nll_loss,
    **dict.fromkeys((Tensor.gather, torch.gather), LogitsFormula.gathered),
    **dict.fromkeys((Tensor.sum, torch.sum), LogitsFormula.summed),
    **dict.fromkeys((Tensor.mean, torch.mean), LogitsFormula.averaged),
    **dict.fromkeys((Tensor.logsumexp, torch.logsumexp), LogitsFormula.logsumexp),
}
"""The operations that are followed, and the methods that do it."""
