"""Results of reentrant checkpointing that are views, for which torch refuses writes in place."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor

from ckpt_surgery.runtime.tensor_origins import storage_of


def writable(results: tuple[Tensor, ...], known: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """The results, so that they can be written in place as without checkpointing.

    Torch refuses that for a view, for whoever holds its base may not see it. A view of which nobody holds the base
    need not be one: another tensor stands in for it. `known` are tensors that others do hold.
    """
    storages = Counter(storage_of(tensor) for tensor in (*results, *known))
    held = _holders(results)
    return tuple(
        tensor.data if tensor._is_view() and holders == _NO_OTHERS and storages[storage_of(tensor)] == 1 else tensor
        for tensor, holders in zip(results, held, strict=True)
    )


def _holders(results: tuple[Tensor, ...]) -> list[tuple[int, int]]:
    """How many references there are to each result and to what it is a view of, those of this function included."""
    counts = []
    for tensor in results:
        base = tensor._base
        counts.append((sys.getrefcount(tensor), sys.getrefcount(base)))
    return counts


_NO_OTHERS = _holders((torch.empty(2)[:1],))[0]
