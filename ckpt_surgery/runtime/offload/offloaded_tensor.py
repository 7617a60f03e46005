"""Tensors that autograd saves for a block: the memory that is moved for one, and the way back; and those that stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.weak import TensorWeakRef

from ckpt_surgery.errors import ModifiedTensorError


class OffloadedTensor:
    """One tensor that was saved: `source` is its memory on the device, until `host_copy` is done.

    `stays` is True where the store had no room for it. `device_copy` is a copy back that was started; `ready` is what
    was fetched and the next block needs again. `aliases` count the writes to the same memory by themselves.
    """

    def __init__(self, tensor: Tensor, aliases: Sequence[Tensor] = ()) -> None:
        self.original = TensorWeakRef(tensor)
        self.version = tensor._version
        self.aliases = tuple((alias, alias._version) for alias in aliases)
        source, self.view = _compact(tensor.detach())
        self.source: Tensor | None = source
        self.bytes = source.nbytes
        self.host_copy: Any = None
        self.stays = False
        self.device_copy: Any = None
        self.ready: Tensor | None = None

    def is_of(self, tensor: Tensor) -> bool:
        """Whether it was made for this very object as it is now: ids and addresses are reused."""
        return self.original() is tensor and tensor._version == self.version

    def modified(self) -> bool:
        """Whether the tensor was written to since; aliases share the counter. False once all of them are gone."""
        counted = [(self.source, self.version), (self.original(), self.version), *self.aliases]
        return any(alias is not None and alias._version != before for alias, before in counted)


class StayingTensor:
    """What autograd keeps for a tensor that stays. With hooks, torch leaves it to them to check its version."""

    __slots__ = ("_alias", "_version")

    def __init__(self, tensor: Tensor) -> None:
        self._alias = tensor.detach()
        self._version = tensor._version

    def tensor(self) -> Tensor:
        """The tensor, outside of the graph. Raises ModifiedTensorError where it was written to since."""
        if self._alias._version != self._version:
            raise ModifiedTensorError(modified_message(self._alias.shape))
        return self._alias


def modified_message(shape: Sequence[int]) -> str:
    """What ModifiedTensorError says of a saved tensor of this shape."""
    return (
        f"An input of a checkpointed block, of shape {tuple(shape)}, was modified in place after it was saved for "
        "the backward. Modify a clone of it, or use an operation that is not in place."
    )


def can_move(tensor: Tensor) -> bool:
    """Whether an input of a block may leave: strided, of a floating dtype, and no view of a parameter."""
    return is_dense(tensor) and tensor.is_floating_point() and not isinstance(tensor._base, nn.Parameter)


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor has strided memory of its own that can be copied."""
    plain = type(tensor) in (Tensor, FakeTensor) and tensor.layout is torch.strided and tensor.device.type != "meta"
    return plain and tensor.numel() > 0


def is_same_view(tensor: Tensor, other: Tensor) -> bool:
    """Whether two strided tensors of the same memory have the same elements in the same order."""
    return (
        type(tensor) is type(other)
        and tensor.dtype == other.dtype
        and tensor.shape == other.shape
        and tensor.stride() == other.stride()
        and tensor.storage_offset() == other.storage_offset()
    )


@dataclass(frozen=True, slots=True)
class _View:
    """How a tensor lies over the memory that is moved for it."""

    size: tuple[int, ...]
    stride: tuple[int, ...] | None
    """None where the tensor has gaps, which are not moved: only dimensions of one element are expanded then."""

    def restore(self, moved: Tensor) -> Tensor:
        """The tensor of that shape over what was moved."""
        return moved.expand(self.size) if self.stride is None else moved.as_strided(self.size, self.stride)


def _compact(tensor: Tensor) -> tuple[Tensor, _View]:
    """The elements that a tensor covers, each once, as a view of the same memory; and the way back."""
    size, stride = tuple(tensor.shape), tensor.stride()
    once = tensor
    for dimension, step in enumerate(stride):
        if step == 0:
            once = once.narrow(dimension, 0, 1)
    span = 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    if span <= once.numel():
        return tensor.as_strided((span,), (1,)), _View(size, stride)
    return once, _View(size, None)
