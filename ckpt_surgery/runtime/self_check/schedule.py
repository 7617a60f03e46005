"""Decide in which calls a block's recompute is compared with its forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ckpt_surgery.runtime.self_check.digests import DigestPlan

SelfCheckOption = Literal["first", "always", "never"] | int
"""The first steps and then one block in each, every step, none, or every n-th."""

FIRST_STEPS = 3
"""The steps in which all blocks are checked, and closely."""
_MOST_SHAPES = 256
"""The most shapes that are told apart: if lengths vary without end, nearly every call would be checked otherwise."""

CheckDepth = Literal["quick", "close"]
"""The depths of a check: exact sums alone, or also by how far two runs are apart."""


class CheckSchedule:
    """The schedule of one block. A step begins with the first forward that follows a recompute.

    `checked` counts the calls that were to be checked, and `compared` the recomputes that were. Checks are
    close in the first steps, for the next call of a block that is `suspected` of having differed, and for every call
    of one that is `noisy`, whose kernels add up in another order each time. `plan` says which of the tensors that the
    block saves are compared.
    """

    def __init__(self, when: SelfCheckOption) -> None:
        self.checked = self.compared = 0
        self.suspected = self.noisy = False
        self.plan: DigestPlan | None = None
        self.restart(when)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "plan": None}

    def restart(self, when: SelfCheckOption, turn: int = 0, turns: int = 1) -> None:
        """Start again at the first step, as after a change of mode; the block has this turn among `turns`."""
        self.when = when
        self._turn = turn
        self._turns = turns
        self._step = 0
        self._recomputed = False
        self._shapes: set[tuple[torch.Size, ...]] = set()

    def due(self, given: Sequence[Tensor]) -> CheckDepth | None:
        """Return how to check a call with these gradient tensors, if at all. Ask once a call."""
        if self._recomputed:
            self._step += 1
            self._recomputed = False
        if self.when == "never" or not (self._is_due(given) or self.suspected):
            return None
        self.checked += 1
        return "close" if self._step < FIRST_STEPS or self.suspected or self.noisy else "quick"

    def recomputed(self, *, compared: bool = False) -> None:
        """Note that a call runs again, and whether it is `compared` with its forward."""
        self._recomputed = True
        self.compared += compared

    def _is_due(self, given: Sequence[Tensor]) -> bool:
        if self.when == "first":
            return self._is_new(given) or self._step < FIRST_STEPS or self._step % self._turns == self._turn
        return self.when == "always" or (self.when != "never" and self._step % self.when == 0)

    def _is_new(self, given: Sequence[Tensor]) -> bool:
        """Tell whether tensors of these shapes come for the first time; after many shapes nothing is new."""
        shapes = tuple([tensor.shape for tensor in given])
        if shapes in self._shapes or len(self._shapes) >= _MOST_SHAPES:
            return False
        self._shapes.add(shapes)
        return True
