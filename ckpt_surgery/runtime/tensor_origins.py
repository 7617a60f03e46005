"""Which tensors a computation without gradients makes of those that require gradient, and which of them outlive it.

Intercepts every operator, so it is used for one call of each block only.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ckpt_surgery.runtime.rounding import Note, note_operand
from ckpt_surgery.runtime.tools.containers import is_differentiable, tensors


class TensorOrigins(TorchDispatchMode):
    """Follows what operators inside its `with` make of `sources`, directly or not.

    Shows `note_rounded` each tensor that is rounded.
    """

    def __init__(self, sources: Iterable[Tensor], note_rounded: Note | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._note_rounded = note_rounded
        self._sources = {id(source) for source in sources}
        self._descendants: dict[int, weakref.ref[Tensor]] = {}
        self._made: dict[int, weakref.ref[Tensor]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if self._note_rounded is not None:
            note_operand(self._note_rounded, func, args)
        result = func(*args, **(kwargs or {}))
        self._made.update((id(tensor), weakref.ref(tensor)) for tensor in tensors(result))
        if func is torch.ops.aten.detach.default:  # asked for by name: nothing goes back from here
            return result
        if any(self.descends_from_sources(tensor) for tensor in tensors((args, kwargs or {}))):
            for tensor in tensors(result):
                if is_differentiable(tensor):
                    self._descendants[id(tensor)] = weakref.ref(tensor)
        return result

    def descends_from_sources(self, tensor: Tensor) -> bool:
        """Whether a tensor is a source, or was made of one."""
        reference = self._descendants.get(id(tensor))
        return id(tensor) in self._sources or (reference is not None and reference() is tensor)

    def made(self, tensor: Tensor) -> bool:
        """Whether an operator made a tensor, or wrote it."""
        reference = self._made.get(id(tensor))
        return reference is not None and reference() is tensor

    def any_alive_besides(self, accounted: Iterable[Tensor]) -> bool:
        """Whether a tensor made of the sources is still alive that shares no memory with any of `accounted`."""
        storages = {storage_of(tensor) for tensor in accounted}
        if not self._any_alive_outside(storages):
            return False
        gc.collect()  # reference cycles are nobody's
        torch.clear_autocast_cache()  # and neither are the weights that autocast has cast
        return self._any_alive_outside(storages)

    def _any_alive_outside(self, storages: Collection[int]) -> bool:
        alive = (tensor for reference in self._descendants.values() if (tensor := reference()) is not None)
        return any(storage_of(tensor) not in storages for tensor in alive)


def storage_of(tensor: Tensor) -> int:
    """Equal for tensors that share memory."""
    return int(tensor.untyped_storage()._cdata)
