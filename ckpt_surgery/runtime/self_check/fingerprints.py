"""Take a few sums over a tensor, by which a recompute is compared with its forward.

The sum over the bits is exact: it shows whether any element differs or has moved. The sum over the values shows by how
much. Both are computed on the tensor's device, without waiting for it, and nothing else is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, reduce
from math import hypot

import torch
from torch import Tensor
from torch.linalg import vector_norm as norm

from ckpt_surgery.runtime.self_check.digests import PERIOD, sum_over, weights, without_autocast
from ckpt_surgery.runtime.tools.tensors import has_values, laid_out, shape_of, strided_parts, unseen

_GROUP = 127
"""How many neighbours are added up before they are weighted. A prime, so that groups are not whole rows, whose sums
may be constant, as for a softmax."""

_FEW = 4096
"""Up to this many elements are weighted one by one: adding up neighbours first is only faster for more."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Shape, dtype and sums of one tensor: `bits` is of int64 and `values` of float32 or float64, both of shape ().

    `values` is None for a dtype without fractions. `strides` are those in which it was summed, () for a tensor of
    another class or layout, and for a parameter.
    """

    shape: torch.Size
    dtype: torch.dtype
    bits: Tensor
    values: Tensor | None
    strides: Sequence[int] = ()

    @classmethod
    def of(cls, tensor: Tensor, expected: Fingerprint | None = None) -> Fingerprint | None:
        """Sum over a tensor of any dtype and layout; None if it has no values, as on "meta".

        Elements are summed in their order in memory, or in that of `expected`. Returns `expected` itself if the bits
        are equal and can be read without waiting for a device.
        """
        if not has_values(tensor):
            return None
        is_strided = type(tensor) is Tensor and tensor.layout is torch.strided
        if is_strided and expected is not None and expected.shape == tensor.shape:
            tensor = laid_out(tensor, expected.strides)
        strides = tensor.stride() if is_strided else ()
        with unseen(), torch.no_grad(), without_autocast(tensor.device.type):
            parts = [part.resolve_conj().resolve_neg() for part in strided_parts(tensor)]
            bits = sum_over(parts)
            form = shape_of(tensor), tensor.dtype, strides
            if expected is not None and (expected.shape, expected.dtype, expected.strides) != form:
                expected = None
            if expected and bits.is_cpu and expected.bits.is_cpu and bits.item() == expected.bits.item():
                return expected
            values = [each for each in map(_real_values, parts) if each.is_floating_point() and each.numel()]
            sums = [_weighted(v, v.dtype if v.dtype == torch.float64 else torch.float32) for v in values]
            return cls(shape_of(tensor), tensor.dtype, bits, reduce(torch.add, sums) if sums else None, strides)

    @classmethod
    def placeholder(cls, tensor: Tensor, number: int = 0, strides: Sequence[int] = ()) -> Fingerprint | None:
        """Return a fingerprint by shape, dtype, number and strides alone, whatever the values."""
        bits = _constant(number, tensor.device)
        return cls(shape_of(tensor), tensor.dtype, bits, None, strides) if has_values(tensor) else None

    @property
    def form(self) -> str:
        """The shape and dtype in words."""
        return f"{'x'.join(map(str, self.shape)) or 'one'} {str(self.dtype).removeprefix('torch.')}"


@cache
def _constant(number: int, device: torch.device) -> Tensor:
    with unseen():
        return torch.full((), number, dtype=torch.int64, device=device)


def magnitude(tensor: Tensor) -> float:
    """Return the root of the sum of squares, by which differences of `values` are measured."""
    if not has_values(tensor) or tensor.numel() == 0:
        return 0.0
    with unseen(), torch.no_grad():
        values = map(_real_values, strided_parts(tensor))
        return hypot(*(float(norm(each, dtype=torch.float64)) for each in values if each.is_floating_point()))


def _real_values(tensor: Tensor) -> Tensor:
    """Return all elements in one dimension, in memory order if that saves a copy, as reals that support arithmetic."""
    if not tensor.is_contiguous():
        strides = tensor.stride()
        order = sorted(range(tensor.dim()), key=lambda dimension: -strides[dimension])
        tensor = tensor.permute(order)
    flat = tensor.resolve_conj().resolve_neg().reshape(-1)
    if flat.is_floating_point() and flat.element_size() == 1:
        return flat.float()
    return torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat


def _weighted(flat: Tensor, dtype: torch.dtype) -> Tensor:
    if flat.numel() <= _FEW:
        return _weigh(flat, dtype)
    whole = flat.numel() // _GROUP * _GROUP
    total = _weigh(flat[:whole].view(-1, _GROUP).sum(1, dtype=dtype), dtype)
    return total if whole == flat.numel() else total + flat[whole:].sum(dtype=dtype)


def _weigh(flat: Tensor, dtype: torch.dtype) -> Tensor:
    factors, count = weights(dtype, flat.device), flat.numel()
    if count <= PERIOD:
        return (flat * factors[:count]).sum(dtype=dtype)
    whole = count // PERIOD * PERIOD
    return _weigh(flat[:whole].view(-1, PERIOD).sum(0, dtype=dtype), dtype) + _weigh(flat[whole:], dtype)
