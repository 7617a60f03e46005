"""Track the tensors that autograd saves for blocks, moved or not, and the order of block calls."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import TensorWeakRef

from ckpt_surgery.errors import ModifiedTensorError
from ckpt_surgery.torch_names import FakeTensor


class OffloadedTensor:
    """One tensor that was saved: `source` is its memory on the device, until `host_copy` is done.

    `stays` is True if the store had no room for it. `device_copy` is a copy back that was started; `ready` is what was
    fetched and is needed again by the next block. `aliases` are tensors of the same memory with version counters of
    their own.
    """

    def __init__(self, tensor: Tensor, aliases: Sequence[Tensor] = ()) -> None:
        self.original = TensorWeakRef(tensor)
        self.version = tensor._version
        self.aliases = tuple((alias, alias._version) for alias in aliases)
        source, self.view = _View.of(tensor.detach())
        self.source: Tensor | None = source
        self.bytes = source.nbytes
        self.host_copy: Any = None
        self.stays = False
        self.device_copy: Any = None
        self.ready: Tensor | None = None

    def is_of(self, tensor: Tensor) -> bool:
        """Tell whether it was made for this very object in its present version: ids and addresses are reused."""
        return self.original() is tensor and tensor._version == self.version

    def modified(self) -> bool:
        """Tell whether the tensor was written to since; aliases share its counter. False once all of them are gone."""
        counted = [(self.source, self.version), (self.original(), self.version), *self.aliases]
        return any(alias is not None and alias._version != before for alias, before in counted)


class StayingTensor:
    """A stand-in for a tensor that stays: torch does not check versions of what is saved through hooks."""

    __slots__ = ("_alias", "_version")

    def __init__(self, tensor: Tensor) -> None:
        self._alias = tensor.detach()
        self._version = tensor._version

    def tensor(self) -> Tensor:
        """Return the tensor without its graph. Raises ModifiedTensorError if it was written to since."""
        if self._alias._version != self._version:
            raise ModifiedTensorError(modified_message(self._alias.shape))
        return self._alias


def modified_message(shape: Sequence[int]) -> str:
    """Return the message of ModifiedTensorError for a saved tensor of this shape."""
    return (
        f"An input of a checkpointed block, of shape {tuple(shape)}, was modified in place after it was saved for "
        "the backward. Modify a clone of it, or use an operation that is not in place."
    )


def can_move(tensor: Tensor) -> bool:
    """Tell whether a block input may move: strided, of a floating dtype, and not a view of a parameter."""
    return is_dense(tensor) and tensor.is_floating_point() and not isinstance(tensor._base, nn.Parameter)


def is_dense(tensor: Tensor) -> bool:
    """Tell whether a tensor has strided memory that can be copied."""
    plain = type(tensor) in (Tensor, FakeTensor) and tensor.layout is torch.strided and tensor.device.type != "meta"
    return plain and tensor.numel() > 0


@dataclass(frozen=True, slots=True)
class _View:
    """The layout of a tensor over its moved memory."""

    size: tuple[int, ...]
    stride: tuple[int, ...] | None
    """None if the tensor has gaps, which are not moved: then only repeated dimensions are expanded again."""

    @classmethod
    def of(cls, tensor: Tensor) -> tuple[Tensor, _View]:
        """Return the elements that a tensor covers, each once, as a view of the same memory, and the way back."""
        size, stride = tuple(tensor.shape), tensor.stride()
        once = tensor
        for dimension, step in enumerate(stride):
            if step == 0:
                once = once.narrow(dimension, 0, 1)
        span = 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
        if span <= once.numel():
            return tensor.as_strided((span,), (1,)), cls(size, stride)
        return once, cls(size, None)

    def restore(self, moved: Tensor) -> Tensor:
        """Return the tensor of that layout over the moved memory."""
        return moved.expand(self.size) if self.stride is None else moved.as_strided(self.size, self.stride)


class CallOrder:
    """The block calls of a forward until a backward begins, and the `order` in which it reaches them."""

    def __init__(self) -> None:
        self._calls: list[weakref.ref[CallInputs]] = []
        self.order: dict[int, None] = {}

    def begin(self, inputs: CallInputs) -> int:
        """Return the number of a new call."""
        self._calls.append(weakref.ref(inputs))
        return len(self._calls) - 1

    def reach(self, number: int) -> bool:
        """Note that the backward has reached a call, perhaps again; tell whether it has reached all of them."""
        self.order.setdefault(number)
        return len(self.order) == len(self._calls)

    def after(self, number: int, order: Sequence[int]) -> Sequence[OffloadedTensor]:
        """Return the inputs of the call that the backward needs next, by the order of an earlier step if it fits."""
        following = number - 1
        if len(order) == len(self._calls):
            following = (*order, -1)[order.index(number) + 1]
        inputs = self._calls[following]() if following >= 0 else None
        return () if inputs is None else inputs.tensors


@dataclass(slots=True, weakref_slot=True, eq=False)
class CallInputs:
    """The tensors of one block call that move: its inputs, and the `results` of operators that are kept with them.

    The call gets a `number` in its step with the first of them, or with a kept result that moves as another's input.
    """

    step: CallOrder
    number: int = -1
    tensors: list[OffloadedTensor] = field(default_factory=list)
    results: int = 0

    def begin(self) -> None:
        """Give the call a number, if it has none yet."""
        if self.number < 0:
            self.number = self.step.begin(self)

    def add(self, offloaded: OffloadedTensor) -> None:
        """Add one more input."""
        self.begin()
        self.tensors.append(offloaded)
