"""The floating-point operations of an operator: those that torch counts, and some that it leaves out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from torch import Tensor
from torch.utils.flop_counter import flop_registry

_CACHED = 4096
"""The most calls whose counts are remembered: a bound on memory when shapes keep changing."""
_counts: dict[tuple[Any, ...], int] = {}


def flops_of(operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> int:
    """Count the floating-point operations of one call: of products, convolutions and attention; 0 for anything else.

    A multiplication and an addition are two, as in torch.utils.flop_counter. Counts are cached by shape, because
    torch's formulas take as long as a small operator.
    """
    packet = getattr(operator, "_overloadpacket", operator)
    formula = _own_formula(packet) or flop_registry.get(packet)
    if formula is None:
        return 0
    try:
        key = (packet, *map(_shape, args), *kwargs, *map(_shape, kwargs.values()), _shape(result))
        known = _counts.get(key)
    except TypeError:
        return int(formula(*args, **kwargs, out_val=result))
    if known is None:
        known = int(formula(*args, **kwargs, out_val=result))
        if len(_counts) >= _CACHED:
            _counts.clear()
        _counts[key] = known
    return known


def _shape(value: Any) -> Any:
    """Return what a count depends on. Raises TypeError for an integer tensor: its values matter (sequence lengths)."""
    if isinstance(value, Tensor):
        if not value.dtype.is_floating_point and not value.dtype.is_complex:
            raise TypeError
        return value.shape
    return tuple(map(_shape, value)) if isinstance(value, (list, tuple)) else value


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    return _scores(query, key) * (query.shape[-1] + value.shape[-1])


def _attention_backward(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    return _scores(query, key) * (3 * query.shape[-1] + 2 * value.shape[-1])  # it recomputes the weights


def _scores(query: Tensor, key: Tensor) -> int:
    """Return twice the number of attention weights, one for each query head: keys may have fewer heads."""
    return 2 * query.shape[:-1].numel() * key.shape[-2]


def _product(left: Tensor, *_: Any, out_val: Tensor, **__: Any) -> int:
    return 2 * out_val.numel() * left.shape[-1]


@cache
def _own_formula(packet: Any) -> Callable[..., Any] | None:
    return _OWN_FORMULAS.get(str(packet))


_KERNELS = (
    "flash_attention",
    "flash_attention_for_cpu",
    "efficient_attention",
    "cudnn_attention",
    "fused_attention_overrideable",
)
_OWN_FORMULAS: Mapping[str, Callable[..., Any]] = {
    # before 2.12 torch refuses keys with fewer heads than queries, and it does not count every kernel
    **{f"aten._scaled_dot_product_{kernel}": _attention for kernel in _KERNELS},
    **{f"aten._scaled_dot_product_{kernel}_backward": _attention_backward for kernel in _KERNELS},
    "flex_attention": _attention,
    "flex_attention_backward": lambda query, key, value, *_, **__: _attention_backward(query, query, key, value),
    "aten.linear": _product,  # nested tensors keep these two whole
    "aten.matmul": _product,
    "bitsandbytes.gemm_4bit": _product,
}
