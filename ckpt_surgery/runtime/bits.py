"""When two tensors are the same, and whether one was written since."""

from __future__ import annotations

import torch
from torch import Tensor


def same_bits(ours: Tensor, theirs: Tensor) -> bool:
    """Whether two tensors are equal bit for bit, in shape and dtype too; NaN equals itself."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    ours, theirs = (t.to_dense() if t.layout != torch.strided else t for t in (ours.detach(), theirs.detach()))
    return torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (ours, theirs)))


def version(tensor: Tensor) -> int:
    """How often a tensor was written in place; always 0 for one of inference mode, which nobody counts."""
    try:
        return tensor._version
    except RuntimeError:
        return 0
