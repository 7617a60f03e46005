"""A stand-in for kernels that add in another order each time, like a GPU's atomics and split products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_LEFT = {_aten.mm.default: 0, _aten.bmm.default: 0, _aten.addmm.default: 1}
"""The index of the left factor of a product."""


class AnyOrder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode in which products, sums, `index_add` and embedding gradients add their terms in another order."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if (left := _LEFT.get(func)) is not None:
            order = self._order(args[left].shape[-1])
            factors = args[left].index_select(-1, order), args[left + 1].index_select(-2, order)
            args = (*args[:left], *factors, *args[left + 2 :])
        elif func is _aten.sum.dim_IntList and args[1]:
            order = self._order(args[0].shape[args[1][0]])
            args = (args[0].index_select(args[1][0], order), *args[1:])
        elif func is _aten.embedding_dense_backward.default:
            gradient, indices, *rest = args
            order = self._order(indices.numel())
            args = (gradient.reshape(-1, gradient.shape[-1])[order], indices.reshape(-1)[order], *rest)
        elif func in (_aten.index_add.default, _aten.index_add_.default):
            tensor, dimension, index, source = args
            order = self._order(index.numel())
            args = (tensor, dimension, index[order], source.index_select(dimension, order))
        return func(*args, **(kwargs or {}))

    def _order(self, terms: int) -> Tensor:
        return torch.randperm(terms, generator=self._generator)
