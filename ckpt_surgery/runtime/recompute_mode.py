"""What the two modes of checkpointing have in common: a first pass of a recorded call, and a second one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from ckpt_surgery.runtime.checkpoint.call_arguments import Arguments
from ckpt_surgery.runtime.checkpoint.recorded_call import RecordedCall
from ckpt_surgery.runtime.self_check.check import SelfCheck

NOTHING: AbstractContextManager[Any] = nullcontext({})


class RecomputeMode:
    """Runs one recorded call twice, and `check` compares. A subclass says what its mode needs of the first pass."""

    __slots__ = ("_call", "_check")

    def __init__(self, call: RecordedCall, check: SelfCheck | None) -> None:
        self._call = call
        self._check = check

    def first(self, arguments: Arguments, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The first pass: its tensors. `given` are the gradient tensors among `arguments`."""
        raise NotImplementedError

    def again(self, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The recompute: the same tensors, with gradient. `given` stand in for the gradient tensors."""
        raise NotImplementedError

    def output(self, results: tuple[Tensor, ...]) -> Any:
        """What the block returned, with `results` in the places of the first pass's tensors. To be called once."""
        raise NotImplementedError
