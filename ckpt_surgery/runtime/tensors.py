"""When two tensors are the same, and whether one was written since."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

_CHUNK = 16 * 2**20
"""So many bytes of a tensor come from its device at a time."""


def same_bits(ours: Tensor, theirs: Tensor) -> bool:
    """Whether two tensors are equal bit for bit, in shape and dtype too; NaN equals itself."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    return torch.equal(_bytes(ours), _bytes(theirs))


def digest(tensor: Tensor) -> str:
    """The sha256 of a tensor's bits, shape and dtype: the same for two tensors where `same_bits` says so."""
    known = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    for part in torch.split(_bytes(tensor), _CHUNK):
        known.update(part.cpu().numpy().tobytes())
    return known.hexdigest()


def _bytes(tensor: Tensor) -> Tensor:
    """All elements in their order, as uint8 of shape (bytes,)."""
    tensor = tensor.detach()
    dense = tensor if tensor.layout == torch.strided else tensor.to_dense()
    return dense.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def version(tensor: Tensor) -> int:
    """How often a tensor was written in place; always 0 for one of inference mode, which nobody counts."""
    try:
        return tensor._version
    except RuntimeError:
        return 0
