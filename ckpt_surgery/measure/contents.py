"""What an argument or an attribute holds, by fingerprints, so that a write into it is seen without a copy of it."""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
from torch import Tensor

from ckpt_surgery.measure.compare import NOISE_EPS
from ckpt_surgery.runtime.checkpoint.call_arguments import CACHE_DEPTH
from ckpt_surgery.runtime.self_check.fingerprints import Fingerprint, fingerprint, magnitude
from ckpt_surgery.runtime.tools.containers import hidden_tensors
from ckpt_surgery.runtime.tools.tensors import is_plain

Contents = list[tuple[Fingerprint | None, float]]
"""The fingerprint and the magnitude of each tensor; of one that has none, how often it was written into."""


def contents_of(value: Any) -> Contents:
    """Return what is known of each tensor in a value, each once. No meter sees what that takes."""
    return [_figures(tensor) for tensor in {id(t): t for t in hidden_tensors(value, CACHE_DEPTH)}.values()]


def differ(before: Contents, after: Contents | None) -> bool:
    """Tell whether something other than rounding is between the contents at two times; None are those of nothing."""
    if after is None or len(before) != len(after):
        return True
    return any(not _is_close(*ours, *theirs) for ours, theirs in zip(before, after, strict=True))


def _figures(tensor: Tensor) -> tuple[Fingerprint | None, float]:
    if is_plain(tensor) and not tensor.is_quantized:  # operators of other kinds may end the process
        try:
            if (found := fingerprint(tensor)) is not None:
                return found, magnitude(tensor)
        except (RuntimeError, TypeError):  # kinds of tensors that lack an operator
            pass
    return None, float(tensor._version)


def _is_close(ours: Fingerprint | None, size: float, theirs: Fingerprint | None, other_size: float) -> bool:
    if ours is None or theirs is None:
        return ours is theirs and size == other_size
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    if ours.bits.item() == theirs.bits.item():
        return True
    if ours.values is None or theirs.values is None:
        return False
    allowed = NOISE_EPS * torch.finfo(ours.dtype).eps * sqrt(ours.shape.numel()) * size
    return abs(float(ours.values) - float(theirs.values)) <= allowed and abs(size - other_size) <= allowed
