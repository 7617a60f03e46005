"""What the two modes of checkpointing have in common: a first pass of a recorded call, and a second one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from ckpt_surgery.runtime.block_state import Key
from ckpt_surgery.runtime.call_arguments import Arguments
from ckpt_surgery.runtime.recorded_call import RecordedCall

NOTHING: AbstractContextManager[Any] = nullcontext({})


class RecomputeMode:
    """Runs one recorded call twice. A subclass says what its mode needs from the first pass."""

    __slots__ = ("_before", "_call")

    def __init__(self, call: RecordedCall) -> None:
        self._call = call
        self._before: dict[Key, Any] = {}

    def first(self, arguments: Arguments, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The first pass: its tensors. `given` are the gradient tensors among `arguments`."""
        raise NotImplementedError

    def again(self, arguments: Arguments) -> tuple[Tensor, ...]:
        """The recompute: the same tensors, with gradient."""
        raise NotImplementedError

    def output(self, results: tuple[Tensor, ...]) -> Any:
        """What the block returned, with `results` in the places of the first pass's tensors. To be called once."""
        raise NotImplementedError

    def _state_at_entry(self) -> AbstractContextManager[Any]:
        """Inside, what the block writes on itself is as it was before the first pass; afterwards as it is now."""
        return self._call.state.as_before(self._before) if self._before else NOTHING
