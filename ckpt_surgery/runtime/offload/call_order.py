"""The calls of blocks in a step, and the order in which its backward reaches them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

from ckpt_surgery.runtime.offload.offloaded_tensor import OffloadedTensor


class CallOrder:
    """The calls of blocks in a forward, until a backward begins, and the `order` in which that reaches them."""

    def __init__(self) -> None:
        self._calls: list[weakref.ref[CallInputs]] = []
        self.order: dict[int, None] = {}

    def begin(self, inputs: CallInputs) -> int:
        """The number of a call."""
        self._calls.append(weakref.ref(inputs))
        return len(self._calls) - 1

    def begin_backward(self, number: int) -> None:
        """The backward has reached a call, for the first time or again."""
        self.order.setdefault(number)

    def is_whole(self) -> bool:
        """Whether the backward has reached every call."""
        return len(self.order) == len(self._calls)

    def after(self, number: int, order: Sequence[int]) -> Sequence[OffloadedTensor]:
        """The inputs of the call that the backward needs after this one, if an earlier step had that order."""
        following = number - 1
        if len(order) == len(self._calls):
            place = order.index(number) + 1
            following = order[place] if place < len(order) else -1
        inputs = self._calls[following]() if following >= 0 else None
        return () if inputs is None else inputs.tensors


@dataclass(slots=True, weakref_slot=True, eq=False)
class CallInputs:
    """The moving inputs of one block's call, which is that of a `number` in its step once there are any, or
    results that are another's inputs.

    So many `results` of the call are among them.
    """

    step: CallOrder
    number: int = -1
    tensors: list[OffloadedTensor] = field(default_factory=list)
    results: int = 0

    def begin(self) -> None:
        """Give the call its number, if it has none."""
        if self.number < 0:
            self.number = self.step.begin(self)

    def add(self, offloaded: OffloadedTensor) -> None:
        """One more input."""
        self.begin()
        self.tensors.append(offloaded)
