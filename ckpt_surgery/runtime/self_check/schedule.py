"""The schedule by which the recomputes of a block are held against their forwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

SelfCheckOption = Literal["first", "always", "never"] | int
"""The first steps and then one block in each, every step, none, or every n-th."""

FIRST_STEPS = 3
_MOST_SHAPES = 256


class CheckSchedule:
    """The schedule of one block. A step begins with the first forward that follows a recompute.

    `checked` counts the calls that were to be checked, and `compared` the recomputes that were.
    """

    def __init__(self, when: SelfCheckOption) -> None:
        self.checked = self.compared = 0
        self.restart(when)

    def restart(self, when: SelfCheckOption, turn: int = 0, turns: int = 1) -> None:
        """Begin again with the first step, as after a change of mode; the block is one of so many, in this order."""
        self.when = when
        self._turn = turn
        self._turns = turns
        self._step = 0
        self._recomputed = False
        self._shapes: set[tuple[torch.Size, ...]] = set()

    def due(self, given: Sequence[Tensor]) -> bool:
        """Tell whether a call with these gradient tensors is to be checked. To be asked once a call."""
        if self._recomputed:
            self._step += 1
            self._recomputed = False
        due = self._is_due(given)
        self.checked += due
        return due

    def recomputed(self, *, compared: bool = False) -> None:
        """Note that a call is run again, and whether it is `compared` with its forward."""
        self._recomputed = True
        self.compared += compared

    def _is_due(self, given: Sequence[Tensor]) -> bool:
        if self.when == "first":
            return self._is_new(given) or self._step < FIRST_STEPS or self._step % self._turns == self._turn
        if self.when == "always":
            return True
        return self.when != "never" and self._step % self.when == 0

    def _is_new(self, given: Sequence[Tensor]) -> bool:
        """Tell whether tensors of these shapes come for the first time; nothing is new once there were many."""
        shapes = tuple([tensor.shape for tensor in given])
        if shapes in self._shapes or len(self._shapes) >= _MOST_SHAPES:
            return False
        self._shapes.add(shapes)
        return True
