"""Whether two tensors are the same bit for bit, and how often one was written."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

_CHUNK = 16 * 2**20
"""Bytes of a tensor that are copied from its device at a time."""


def same_bits(ours: Tensor, theirs: Tensor) -> bool:
    """Whether two tensors are equal bit for bit, in shape and dtype too; NaN equals itself."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    return torch.equal(_bytes(ours), _bytes(theirs))


def digest(tensor: Tensor) -> str:
    """The sha256 of a tensor's bits, shape and dtype: equal for two tensors exactly where `same_bits` holds."""
    sha = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    for part in torch.split(_bytes(tensor), _CHUNK):
        sha.update(part.cpu().numpy().tobytes())
    return sha.hexdigest()


def _bytes(tensor: Tensor) -> Tensor:
    """All elements in their order, as uint8 of shape (bytes,)."""
    tensor = tensor.detach()
    dense = tensor if tensor.layout == torch.strided else tensor.to_dense()
    return dense.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def version(tensor: Tensor) -> int:
    """How often a tensor was written in place; 0 for inference tensors, for which torch keeps no count."""
    try:
        return tensor._version
    except RuntimeError:
        return 0
