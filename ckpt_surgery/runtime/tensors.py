"""Whether two tensors are the same bit for bit, and how often one was written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from operator import attrgetter

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

unseen = torch._C._DisableTorchDispatch
"""What runs in a `with` of it is not seen by dispatch modes: by selective policies and meters."""

_CHUNK = 16 * 2**20
"""Bytes of a tensor that are copied from its device at a time."""


def same_bits(ours: Tensor, theirs: Tensor) -> bool:
    """Whether two tensors are equal bit for bit, in shape and dtype too; NaN equals itself."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    with unseen():
        return torch.equal(_bytes(ours), _bytes(theirs))


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor holds its values itself: it is not sharded, fake or on "meta"."""
    return type(tensor) in (Tensor, nn.Parameter) and not tensor.is_meta


def unseen_for(tensor: Tensor) -> AbstractContextManager[object]:
    """`unseen` for operators on a tensor, of whatever class: those of fake and sharded ones still go to the class."""
    return unseen() if is_plain(tensor) else _disable_current_modes()


def is_parameter(tensor: Tensor) -> bool:
    """Whether a tensor is a parameter, or a view of one."""
    if type(tensor) is Tensor and tensor._base is None:  # to ask whether something is a Parameter takes long
        return False
    return isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)


def copy_of(tensor: Tensor) -> Tensor:
    """A copy that nobody else writes, and that no dispatch mode sees being made."""
    with unseen(), torch.no_grad():
        return tensor.clone()


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
    flat = dense.resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.numel() and flat.stride(0) != 1:  # one element has any stride
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


_version_of: Callable[[Tensor], int] = attrgetter("_version")


def versions(tensors: Sequence[Tensor]) -> list[int]:
    """The `version` of each tensor."""
    try:
        return list(map(_version_of, tensors))
    except RuntimeError:  # there are inference tensors
        return list(map(version, tensors))


def version(tensor: Tensor) -> int:
    """How often a tensor was written in place; 0 for inference tensors, for which torch keeps no count."""
    try:
        return tensor._version
    except RuntimeError:
        return 0
