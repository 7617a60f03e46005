"""Inspect, compare and copy tensors of any class: their bits, memory and version counters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from operator import attrgetter

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ckpt_surgery.runtime.tools.classes import descends
from ckpt_surgery.torch_names import (
    DisableTorchDispatch,
    disable_current_modes,
    dispatch_stack_length,
    saved_tensors_hooks_now,
)

unseen = DisableTorchDispatch
"""A context that hides the operators in it from dispatch modes, such as selective policies and meters."""


def same_bits(ours: Tensor, theirs: Tensor) -> bool:
    """Tell whether two tensors are equal bit for bit, in shape and dtype too; NaN equals itself."""
    if shape_of(ours) != shape_of(theirs) or ours.dtype != theirs.dtype:
        return False
    with unseen():
        return all(map(torch.equal, map(raw_bytes, inner_tensors(ours)), map(raw_bytes, inner_tensors(theirs))))


def is_plain(tensor: Tensor) -> bool:
    """Tell whether a tensor holds its values itself: it is not sharded, fake or on "meta"."""
    return type(tensor) in (Tensor, nn.Parameter) and not tensor.is_meta


@cache
def is_wrapper(kind: type) -> bool:
    """Tell whether tensors of a class run operators on inner tensors, as nested, sharded and quantized ones do.

    A dispatch mode that returns NotImplemented for them gets the operators on the inner tensors.
    """
    return hasattr(kind, "__tensor_flatten__") and hasattr(kind, "__tensor_unflatten__")


def inner_tensors(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensors that hold the values of a tensor: itself, or those inside."""
    if not is_wrapper(type(tensor)):
        yield tensor
        return
    inside, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    for name in inside:
        if isinstance(held := getattr(tensor, name), Tensor):  # a sharded one lists its mesh too
            yield from inner_tensors(held)


def has_values(tensor: Tensor) -> bool:
    """Tell whether a tensor has values: not on "meta", and not fake."""
    return not any(inner.is_meta or descends(type(inner), "FakeTensor") for inner in inner_tensors(tensor))


def strided_parts(tensor: Tensor) -> Iterator[Tensor]:
    """Yield strided tensors without a graph that hold the values and indices of a tensor of any layout."""
    for inner in map(Tensor.detach, inner_tensors(tensor)):
        if inner.layout is torch.sparse_coo:
            yield from (inner._indices(), inner._values())
        elif inner.layout in (torch.sparse_csr, torch.sparse_bsr):
            yield from (inner.crow_indices(), inner.col_indices(), inner.values())
        elif inner.layout in (torch.sparse_csc, torch.sparse_bsc):
            yield from (inner.ccol_indices(), inner.row_indices(), inner.values())
        elif inner.layout is not torch.strided:
            yield inner.to_dense()
        else:
            yield inner.int_repr() if inner.is_quantized else inner


def laid_out(tensor: Tensor, strides: Sequence[int]) -> Tensor:
    """Return a copy of a strided tensor in these strides, or the tensor itself if they cannot hold its values."""
    if tensor.stride() == strides or tensor.dim() != len(strides):
        return tensor
    repeated = [stride == 0 and size > 1 for size, stride in zip(tensor.shape, strides, strict=True)]
    with unseen(), torch.no_grad():
        once = tensor[tuple(slice(0, 1) if is_repeated else slice(None) for is_repeated in repeated)]
        copy = torch.empty_strided(once.shape, strides, dtype=tensor.dtype, device=tensor.device)
        try:
            copy = copy.copy_(once).expand(tensor.shape)
        except RuntimeError:  # elements overlap
            return tensor
    return copy if same_bits(copy, tensor) else tensor


def is_differentiable(tensor: Tensor) -> bool:
    """Tell whether the dtype of a tensor has derivatives."""
    return tensor.is_floating_point() or tensor.is_complex()


def shape_of(tensor: Tensor) -> torch.Size:
    """Return a tensor's shape; for a nested one that of its values, since each run renames its ragged dimension."""
    return next(inner_tensors(tensor)).shape if tensor.is_nested else tensor.shape


def unseen_for(tensor: Tensor) -> AbstractContextManager[object]:
    """Hide operators on a tensor from dispatch modes; the class of a fake or sharded tensor still sees them."""
    return unseen() if is_plain(tensor) else disable_current_modes()


def without_graph(tensor: Tensor) -> Tensor:
    """Return a detached tensor that requires gradient again, so that operators save the same for it."""
    if not dispatch_stack_length():
        return tensor.detach().requires_grad_()
    with unseen_for(tensor):
        return tensor.detach().requires_grad_()


def is_parameter(tensor: Tensor) -> bool:
    """Tell whether a tensor is a parameter, or a view of one."""
    if type(tensor) is Tensor and tensor._base is None:  # asking whether something is a Parameter is slow
        return False
    return isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)


def strides_of_view(tensor: Tensor) -> Sequence[int]:
    """Return the strides of a view that is not contiguous; () for other tensors, moved and freed ones included."""
    return () if tensor._base is None or tensor.is_contiguous() else tensor.stride()


def copy_of(tensor: Tensor) -> Tensor:
    """Return a copy that nobody else writes to, hidden from dispatch modes."""
    with unseen(), torch.no_grad():
        return tensor.clone()


def raw_bytes(tensor: Tensor) -> Tensor:
    """Return all elements in order, as uint8 of shape (bytes,)."""
    tensor = tensor.int_repr() if tensor.is_quantized else tensor.detach()
    dense = tensor if tensor.layout == torch.strided else tensor.to_dense()
    flat = dense.resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.numel() and flat.stride(0) != 1:  # one element has any stride
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


@contextmanager
def changing_saved(change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Hand `change(tensor)` to the hooks for saved tensors, if any, for each tensor that operators save inside."""
    hooks = saved_tensors_hooks_now(True)
    if hooks is None:
        yield
        return
    pack, unpack = hooks
    with saved_tensors_hooks(lambda tensor: pack(change(tensor)), unpack):
        yield


_version_of: Callable[[Tensor], int] = attrgetter("_version")


def versions(tensors: Sequence[Tensor]) -> list[int]:
    """Return the `version` of each tensor."""
    try:
        return list(map(_version_of, tensors))
    except RuntimeError:  # there are inference tensors
        return list(map(version, tensors))


def version(tensor: Tensor) -> int:
    """Return how often a tensor was written in place; 0 for inference tensors, which have no counter."""
    try:
        return tensor._version
    except RuntimeError:
        return 0
