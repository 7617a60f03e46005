"""One call of a head whose logits are not there: what they would be made of, and whom their uses are told."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.runtime.tools.tensors import versions


class Fused(StrEnum):
    """What computed a loss without logits."""

    OURS = "fused_linear_cross_entropy"
    TORCH = "torch.nn.functional.linear_cross_entropy"


@dataclass(frozen=True, slots=True)
class Made:
    """Logits that were made, for this function; `later` than a loss of theirs was fused, or before."""

    function: str
    later: bool = False


@dataclass(slots=True, eq=False)
class HeadCall:
    """One call of a head: what it was given, and what became of its logits.

    `hidden` is (..., hidden size), `weight` (vocabulary, hidden size), `bias` (vocabulary). `notify` is told of every
    fused loss, and once that logits were made.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    autocast: torch.dtype | None
    notify: Callable[[Fused | Made], None]
    made: bool = False
    fused: bool = False
    _before: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._before = self._versions()

    def _versions(self) -> list[int]:
        return versions([tensor for tensor in (self.hidden, self.weight, self.bias) if tensor is not None])

    def logits(self) -> Tensor:
        """The logits of the call; a SurgeryError where what they are made of is not what it was any more."""
        if self._versions() != self._before:
            raise SurgeryError(
                "these logits cannot be made any more: the head or its input was written to since the forward, as by "
                "an optimizer's step; use outputs.logits before that"
            )
        return self.product(self.hidden, self.weight, self.bias)

    def product(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The logits as the head makes them, under the autocast of the call."""
        with self.casting():
            return F.linear(hidden, weight, bias)

    def casting(self) -> AbstractContextManager[Any]:
        """The autocast of the call: its loss may be computed after that has ended."""
        kind = self.weight.device.type
        if not torch.amp.is_autocast_available(kind):
            return nullcontext()
        return torch.autocast(kind, self.autocast, enabled=self.autocast is not None)
