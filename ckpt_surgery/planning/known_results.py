"""Cache operators' results on tensors without data: alike blocks run the same operators on the same shapes.

torch's own cache is for any kind of tensor, and checks at each look-up that an entry holds. This one needs no checks:
it is for dense, real tensors of at least one dimension, and for operators that make or view one tensor.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ckpt_surgery.runtime.tools.tensors import unseen
from ckpt_surgery.torch_names import FakeTensor, FakeTensorMode

_BY_VALUES = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded)


class KnownResults:
    """The results of operators in one mode without data, by their arguments."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._known: dict[Hashable, tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype, torch.device, bool]] = {}

    def key(self, func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Hashable:
        """Return a key of all that the result depends on; None if there is no such key."""
        if not _makes_one(func) or not args or not isinstance(args[0], FakeTensor):
            return None
        parts = [*map(_part, args), *((name, _part(value)) for name, value in options.items())]
        return None if None in parts or any(type(part) is tuple and None in part for part in parts) else (func, *parts)

    def find(self, key: Hashable, source: Tensor) -> Tensor | None:
        """Return a tensor like the result for this key, a view of `source` if the result was one; None if unknown."""
        known = self._known.get(key)
        if known is None:
            return None
        shape, stride, offset, dtype, device, views = known
        with unseen():
            new = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
            if views:
                new.set_(source.untyped_storage(), offset, shape, stride)
        return FakeTensor(self._mode, new, device)

    def note(self, key: Hashable, args: tuple[Any, ...], result: Any) -> None:
        """Remember a result, if it is one dense tensor that is new or views the first argument."""
        if type(result) is not FakeTensor or not _is_plain(result) or any(each is result for each in args):
            return
        storage = result.untyped_storage()
        address = storage._cdata
        shared = [
            i for i, arg in enumerate(args) if isinstance(arg, Tensor) and arg.untyped_storage()._cdata == address
        ]
        elements = 1 + sum((length - 1) * step for length, step in zip(result.shape, result.stride(), strict=True))
        held = result.itemsize * (elements if result.numel() else 0)
        whole = not result.storage_offset() and storage.nbytes() == held
        if shared == [0] or (not shared and whole):
            offset = int(result.storage_offset())
            shape, stride = tuple(result.shape), result.stride()
            self._known[key] = shape, stride, offset, result.dtype, result.fake_device, bool(shared)


def _part(value: Any) -> Hashable:
    """Return the part of an argument that decides a result; None if that is not known."""
    if isinstance(value, FakeTensor):
        if not _is_plain(value):
            return None
        return value.shape, value.stride(), value.storage_offset(), value.dtype, value.fake_device
    if isinstance(value, Tensor) or value is None:
        return None if value is not None else "None"
    if isinstance(value, (list, tuple)):
        return tuple(map(_part, value))
    return (type(value), value) if isinstance(value, Hashable) else None


def _is_plain(tensor: Tensor) -> bool:
    return bool(tensor.ndim) and tensor.layout is torch.strided and not tensor.dtype.is_complex


@cache
def _makes_one(func: Any) -> bool:
    """Tell whether an operator changes nothing and makes one tensor, which shapes alone decide."""
    schema = func._schema
    returns = [str(each.type) for each in schema.returns]
    makes_one = func.namespace == "aten" and not schema.is_mutable and returns == ["Tensor"]
    return makes_one and not any(tag in func.tags for tag in _BY_VALUES)
