"""Which tensors a computation without gradients made of those that would have had some, and who outlives it.

For one call only: it looks at every operator.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ckpt_surgery.runtime.call_arguments import is_differentiable, tensors


class Made(TorchDispatchMode):
    """Follows what operators inside its `with` make of `sources`, directly or not."""

    def __init__(self, sources: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sources = {id(source) for source in sources}
        self._made: dict[int, weakref.ref[Tensor]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(self.follows(tensor) for tensor in tensors((args, kwargs or {}))):
            for tensor in tensors(result):
                if is_differentiable(tensor):
                    self._made[id(tensor)] = weakref.ref(tensor)
        return result

    def others(self, known: Iterable[Tensor]) -> bool:
        """Whether one of them is still alive that is none of `known`, and no view or base of one."""
        storages = {_storage(tensor) for tensor in known}
        if not self._any_but(storages):
            return False
        gc.collect()  # what only refers to itself is no longer anybody's
        torch.clear_autocast_cache()  # nor are the weights that autocast has cast
        return self._any_but(storages)

    def _any_but(self, storages: Collection[int]) -> bool:
        alive = (tensor for reference in self._made.values() if (tensor := reference()) is not None)
        return any(_storage(tensor) not in storages for tensor in alive)

    def follows(self, tensor: Tensor) -> bool:
        """Whether a tensor is a source, or was made of one."""
        reference = self._made.get(id(tensor))
        return id(tensor) in self._sources or (reference is not None and reference() is tensor)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
