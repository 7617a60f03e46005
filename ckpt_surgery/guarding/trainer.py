"""`CheckpointGuard`, a callback that guards what transformers' Trainer and its subclasses (TRL and others) train."""

# ruff: noqa: E402

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from ckpt_surgery.optional import load_runtime

load_runtime("CheckpointGuard")

from transformers import TrainerCallback

from ckpt_surgery.guarding.guard import GuardOptions, OnFault
from ckpt_surgery.guarding.guarded_training import GuardedTraining
from ckpt_surgery.guarding.report import GuardReport
from ckpt_surgery.guarding.takeover import TakeoverOptions
from ckpt_surgery.long_sequences.calls import apply_plan
from ckpt_surgery.static.plan_file import read_plan


class CheckpointGuard(TrainerCallback):  # type: ignore[misc]  # transformers is not read by the type checker
    """Guards the model that a Trainer trains, from the start of the training to its end.

    The report is also printed at the end on the first rank. `every`, `prove`, `on_fault` and `patience` are those of
    `guard`.

    Args:
        wrap: also call `wrap_blocks` on the model, with the options of the Trainer, and undo that at the end. A model
            that was wrapped before stays as it is. A model that cannot be wrapped, or whose gradients cannot be
            vouched for in a step, trains as the Trainer has it, with a SurgeryWarning; with `on_fault="raise"` that is
            raised.
        plan: the file of a plan, which is applied to the model in place of `wrap_blocks`; `fit --write` and `plan
            --yaml` write one.

    Raises:
        OptionError: the file is not a plan, or a value is not one that `guard` takes.
    """

    def __init__(
        self,
        *,
        wrap: bool = False,
        plan: str | Path | None = None,
        every: int = 100,
        prove: bool = True,
        on_fault: OnFault = "warn",
        patience: int = 20,
    ) -> None:
        operation = None if plan is None else partial(apply_plan, read_plan(plan))
        guarding = GuardOptions(every, prove, on_fault, patience)
        self._training = GuardedTraining(TakeoverOptions(wrap or plan is not None, {}, operation, guarding))

    @property
    def report(self) -> GuardReport | None:
        """What the guard saw in the last training; None before its end."""
        return next(iter(self._training.reports), None)

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Wrap the model if asked to, and start watching. If that fails, `on_fault="raise"` raises GuardError."""
        self._training.begin(model)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop watching, print what was seen, and undo what was done. A Trainer does not call this after an error."""
        self._training.end(prints=state.is_world_process_zero)
