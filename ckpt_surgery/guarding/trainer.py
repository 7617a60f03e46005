"""The guard as a callback of transformers' Trainer, and so of those of TRL, sentence-transformers and others."""

# ruff: noqa: E402

from __future__ import annotations

import sys
from typing import Any

from ckpt_surgery.optional import load_runtime

load_runtime("CheckpointGuard")

from transformers import TrainerCallback

from ckpt_surgery.guarding.guard import Guard, GuardOptions, OnFault
from ckpt_surgery.guarding.report import GuardReport
from ckpt_surgery.guarding.takeover import wrap_as_asked
from ckpt_surgery.measure.switch import has_surgery
from ckpt_surgery.runtime.surgery.surgery import Surgery


class CheckpointGuard(TrainerCallback):  # type: ignore[misc]  # transformers is not read by the type checker
    """Guards the model that a Trainer trains, from the start of the training to its end.

    `report` is what it saw; it is also printed at the end on the first rank.

    Args:
        wrap: also call `wrap_blocks` on the model, with the options of the Trainer, and undo that at the end. A model
            that was wrapped before stays as it is.
        every, prove, on_fault, patience: as in `guard`.

    Raises:
        OptionError: a value is none of those that `guard` takes.
    """

    def __init__(
        self,
        *,
        wrap: bool = False,
        every: int = 100,
        prove: bool = True,
        on_fault: OnFault = "warn",
        patience: int = 20,
    ) -> None:
        self._options = GuardOptions(every, prove, on_fault, patience)
        self._wrap = wrap
        self._surgery: Surgery | None = None
        self._guard: Guard | None = None
        self.report: GuardReport | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Wrap the model if asked to, and begin to watch."""
        if self._guard is not None:  # the Trainer begins again without an end after an error, as for a smaller batch
            self._guard.remove()
        if self._wrap and not has_surgery(model):
            self._surgery = wrap_as_asked(model)
        self._guard = Guard(model, self._options)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop watching, print what was seen, and undo what was done."""
        if self._guard is None:
            return
        self.report = self._guard.report()
        self._guard.remove()
        self._guard = None
        if self._surgery is not None:
            self._surgery.undo()
            self._surgery = None
        if state.is_world_process_zero:
            print(self.report, file=sys.stderr)
