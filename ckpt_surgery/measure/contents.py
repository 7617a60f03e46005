"""What an argument or an attribute holds, as a few figures, so that a write into it is seen without a copy of it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ckpt_surgery.runtime.checkpoint.call_arguments import CACHE_DEPTH
from ckpt_surgery.runtime.tools.containers import hidden_tensors
from ckpt_surgery.torch_names import disable_current_modes

_ROUNDINGS = 16
"""Differences of a sum, in units of the dtype's eps times the largest sum there can be of such a norm."""


class _Figures(NamedTuple):
    """The figures of one tensor; those of a kind that has no sum tell its shape and how often it was written into."""

    shape: tuple[int, ...]
    total: float
    norm: float
    allowed: float


Contents = list[_Figures]


def contents_of(value: Any) -> Contents:
    """Return the figures of each tensor in a value, each once. No meter sees what that takes."""
    with torch.no_grad(), disable_current_modes():
        return [_figures(tensor) for tensor in {id(t): t for t in hidden_tensors(value, CACHE_DEPTH)}.values()]


def differ(before: Contents, after: Contents | None) -> bool:
    """Tell whether something other than rounding is between the contents at two times; None are those of nothing."""
    if after is None or len(before) != len(after):
        return True
    return any(not _close(ours, theirs) for ours, theirs in zip(before, after, strict=True))


def _figures(tensor: Tensor) -> _Figures:
    # kernels of other kinds of tensors lack sums, or end the process
    if type(tensor) is not Tensor or tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        return _Figures((), float(tensor._version), 0.0, 0.0)
    try:
        values = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor.detach()
        total = float(values.sum(dtype=torch.float64))
        norm = float(torch.linalg.vector_norm(values, dtype=torch.float64)) if values.is_floating_point() else 0.0
        eps = torch.finfo(values.dtype).eps if values.is_floating_point() else 0.0
    except RuntimeError:  # dtypes of a byte and less
        return _Figures(tuple(tensor.shape), float(tensor._version), 0.0, 0.0)
    return _Figures(tuple(tensor.shape), total, norm, _ROUNDINGS * eps * norm * math.sqrt(max(1, values.numel())))


def _close(ours: _Figures, theirs: _Figures) -> bool:
    if ours.shape != theirs.shape:
        return False
    pairs = ((ours.total, theirs.total), (ours.norm, theirs.norm))
    return all(a == b or abs(a - b) <= ours.allowed or (a != a and b != b) for a, b in pairs)
