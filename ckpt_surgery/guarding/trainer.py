"""The guard as a callback of transformers' Trainer, and so of TRL's trainers."""

from __future__ import annotations

import sys
from typing import Any

import torch  # noqa: F401 - where it is missing, that is the error, and not what transformers says about it
from transformers import TrainerCallback

from ckpt_surgery.guarding.guard import Guard, OnFault, guard
from ckpt_surgery.guarding.report import GuardReport


class CheckpointGuard(TrainerCallback):  # type: ignore[misc]  # transformers is not read by the type checker
    """Guards the model that a Trainer trains, from the start of the training to its end.

    The arguments are those of `guard`. `report` is what it saw; it is also printed at the end on the first rank.
    """

    def __init__(
        self, *, every: int = 100, prove: bool = True, on_fault: OnFault = "warn", patience: int = 20
    ) -> None:
        self._options: dict[str, Any] = {"every": every, "prove": prove, "on_fault": on_fault, "patience": patience}
        self._guard: Guard | None = None
        self.report: GuardReport | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Begin to watch."""
        self._guard = guard(model, **self._options)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop watching, and print what was seen."""
        if self._guard is None:
            return
        self.report = self._guard.report()
        self._guard.remove()
        if state.is_world_process_zero:
            print(self.report, file=sys.stderr)
