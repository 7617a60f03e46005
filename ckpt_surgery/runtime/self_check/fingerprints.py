"""A few sums over a tensor, by which what a recompute makes is held against what its forward made.

The sum over the bits is exact: it tells whether anything differs, and which element stands where. The sum over the
values tells how much. Both are made on the tensor's device, without waiting for it, and are all that is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, reduce
from math import hypot
from typing import Any

import torch
from torch import Tensor
from torch.linalg import vector_norm as norm

from ckpt_surgery.runtime.tools.classes import descends
from ckpt_surgery.runtime.tools.tensors import inner_tensors, laid_out, shape_of, strided_parts, unseen

_PERIOD = 65_537
"""How many weights there are. It is a prime, and so divides no size of a model: elements that have the same weight do
not stand below each other."""

_GROUPS = {False: 32, True: 127}
"""Neighbours that are added up before they are weighted: words of bits, and values. Rows of values may add up to a
constant, as those of a softmax do, so the number divides no row."""

_FEW = 4096
"""Elements that are weighted one by one: to add up neighbours first is faster only where there are more."""

_BETWEEN = 6_364_136_223_846_793_005
"""What the sum of a part is multiplied by before the next one is added: two changes do not cancel each other."""

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


_NOTHING: AbstractContextManager[Any] = nullcontext()


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Shape, dtype and sums of one tensor: `bits` is of int64 and `values` of float32 or float64, both of shape ().

    `values` is None for a dtype without fractions. `strides` are those in which it was summed, () for a tensor of
    another class or layout; of a parameter they are its place.
    """

    shape: torch.Size
    dtype: torch.dtype
    bits: Tensor
    values: Tensor | None
    strides: Sequence[int] = ()


def fingerprint(tensor: Tensor, expected: Fingerprint | None = None) -> Fingerprint | None:
    """Sum over a tensor of any dtype and layout; None for one that has no values, as on "meta".

    Elements are summed as they lie in memory, or as those of `expected` lay. Returns `expected` itself where the bits
    are the same and can be read without waiting for a device.
    """
    if not has_values(tensor):
        return None
    is_strided = type(tensor) is Tensor and tensor.layout is torch.strided
    if is_strided and expected is not None and expected.shape == tensor.shape:
        tensor = laid_out(tensor, expected.strides)
    strides = tensor.stride() if is_strided else ()
    with unseen(), torch.no_grad(), without_autocast(tensor.device.type):
        parts = _parts(tensor)
        bits = _all_bits(parts)
        if expected is not None and expected.strides == strides and _is_of(expected, tensor, bits):
            return expected
        return Fingerprint(shape_of(tensor), tensor.dtype, bits, _all_values(parts), strides)


def _is_of(expected: Fingerprint, tensor: Tensor, bits: Tensor) -> bool:
    if expected.shape != shape_of(tensor) or expected.dtype != tensor.dtype:
        return False
    return bits.is_cpu and expected.bits.is_cpu and bits.item() == expected.bits.item()


def placeholder(tensor: Tensor, number: int = 0, place: Sequence[int] = ()) -> Fingerprint | None:
    """Return a fingerprint that is the same for all tensors of a shape, dtype, number and place, whatever their values."""
    bits = _constant(number, tensor.device)
    return Fingerprint(shape_of(tensor), tensor.dtype, bits, None, place) if has_values(tensor) else None


@cache
def _constant(number: int, device: torch.device) -> Tensor:
    with unseen():
        return torch.full((), number, dtype=torch.int64, device=device)


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Return what switches autocast off for a kind of device where it is on."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else _NOTHING


def magnitude(tensor: Tensor) -> float:
    """Return the root of the sum of squares, by which a difference of `values` is measured."""
    if not has_values(tensor) or tensor.numel() == 0:
        return 0.0
    with unseen(), torch.no_grad():
        values = (_real(part) for part in _parts(tensor))
        return hypot(*(float(norm(each, dtype=torch.float64)) for each in values if each.is_floating_point()))


def has_values(tensor: Tensor) -> bool:
    """Tell whether a tensor has values: not on "meta", and not fake."""
    return not any(inner.is_meta or descends(type(inner), "FakeTensor") for inner in inner_tensors(tensor))


def _parts(tensor: Tensor) -> list[Tensor]:
    """Flatten the values of a tensor: of a DTensor those on this rank, of a nested one its lengths too."""
    return [_flat(part) for part in strided_parts(tensor)]


def _all_bits(parts: Iterable[Tensor]) -> Tensor:
    return reduce(lambda total, more: _BETWEEN * total + more, map(sum_of_bits, parts))


def _all_values(parts: Iterable[Tensor]) -> Tensor | None:
    sums = [total for part in parts if (total := _sum_of_values(part)) is not None]
    return reduce(torch.add, sums) if sums else None


def _flat(tensor: Tensor) -> Tensor:
    """Return all elements in one dimension, in the order of memory where that saves a copy."""
    if not tensor.is_contiguous():
        strides = tensor.stride()
        order = sorted(range(tensor.dim()), key=lambda dimension: -strides[dimension])
        tensor = tensor.permute(order)
    return tensor.resolve_conj().resolve_neg().reshape(-1)


def _real(flat: Tensor) -> Tensor:
    """Return real values of a dtype that has arithmetic."""
    if flat.is_floating_point() and flat.element_size() == 1:
        return flat.float()
    return torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat


def sum_of_bits(flat: Tensor) -> Tensor:
    """Return a weighted sum over the bits of `flat`, as int64 of shape ()."""
    size = flat.numel() * flat.element_size()
    if flat.numel() == 0:
        return torch.zeros((), dtype=torch.int64, device=flat.device)
    width = next(width for width in (8, 4, 2, 1) if size % width == 0)
    aligned = flat.storage_offset() * flat.element_size() % width == 0
    if not aligned or flat.stride(0) != 1:  # one element has any stride
        flat = flat.clone(memory_format=torch.contiguous_format)
    return _weighted(flat.view(INTEGERS[width]), torch.int64)


def _sum_of_values(flat: Tensor) -> Tensor | None:
    values = _real(flat)
    if not values.is_floating_point() or values.numel() == 0:
        return None
    return _weighted(values, torch.float64 if values.dtype == torch.float64 else torch.float32)


def _weighted(flat: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a weighted sum over `flat`, of shape ()."""
    if flat.numel() <= _FEW:
        return _weigh(flat, dtype)
    group = _GROUPS[dtype.is_floating_point]
    whole = flat.numel() // group * group
    total = _weigh(flat[:whole].view(-1, group).sum(1, dtype=dtype), dtype)
    return total if whole == flat.numel() else total + flat[whole:].sum(dtype=dtype)


def _weigh(flat: Tensor, dtype: torch.dtype) -> Tensor:
    drawn, count = weights(dtype, flat.device), flat.numel()
    if count <= _PERIOD:
        return (flat * drawn[:count]).sum(dtype=dtype)
    whole = count // _PERIOD * _PERIOD
    return _weigh(flat[:whole].view(-1, _PERIOD).sum(0, dtype=dtype), dtype) + _weigh(flat[whole:], dtype)


@cache
def weights(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the weights, drawn once: odd ones of int64, or of a float dtype."""
    generator = torch.Generator().manual_seed(0)
    if dtype == torch.int64:
        drawn = torch.randint(-(2**62), 2**62, (_PERIOD,), generator=generator) * 2 + 1
    else:
        drawn = torch.randn(_PERIOD, generator=generator, dtype=dtype)
    return drawn.to(device)
