"""`LightningGuard`, a callback that guards what Lightning trains.

Only this file imports Lightning, and nothing else imports this file.
"""

# ruff: noqa: E402

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ckpt_surgery.optional import is_installed, load_runtime, missing_package

load_runtime("LightningGuard", ("torch",))

from torch import nn

from ckpt_surgery.guarding.guard import GuardOptions, OnFault
from ckpt_surgery.guarding.guarded_training import GuardedTraining
from ckpt_surgery.guarding.report import GuardReport
from ckpt_surgery.guarding.takeover import TakeoverOptions

if is_installed("lightning"):
    from lightning.pytorch.callbacks import Callback
elif is_installed("pytorch_lightning"):
    from pytorch_lightning.callbacks import Callback
else:
    raise missing_package("LightningGuard", "lightning")


class LightningGuard(Callback):  # type: ignore[misc]  # Lightning is not read by the type checker
    """Guards the models that a LightningModule trains, from the start of the training to its end.

    A LightningModule is seldom called itself: the models are those of its modules that its training step calls.
    The reports are also printed at the end on the first rank. `every`, `prove`, `on_fault` and `patience` are those of
    `guard`.

    Args:
        wrap: call `wrap_blocks` on the models, and undo that at the end. With None, only models whose library's
            checkpointing is switched on are wrapped, with its options. A model that cannot be wrapped trains as it is,
            with a SurgeryWarning; with `on_fault="raise"` that is raised after the step.

    Raises:
        OptionError: a value is not one that `guard` takes.
    """

    def __init__(
        self,
        *,
        wrap: bool | None = None,
        every: int = 100,
        prove: bool = True,
        on_fault: OnFault = "warn",
        patience: int = 20,
    ) -> None:
        super().__init__()
        guarding = GuardOptions(every, prove, on_fault, patience)
        self._training = GuardedTraining(TakeoverOptions(wrap, guard_options=guarding))

    @property
    def reports(self) -> Sequence[GuardReport]:
        """What the guards saw in the last training."""
        return self._training.reports

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Start to look for the models in the first step."""
        self._training.begin_within(pl_module)

    def on_train_batch_end(self, trainer: Any, pl_module: nn.Module, *_: Any) -> None:
        """Stop looking once the models are known. If one failed, `on_fault="raise"` raises GuardError."""
        self._training.check()

    def on_train_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Stop watching, print what was seen, and undo what was done."""
        self._training.end(prints=trainer.is_global_zero)

    def on_exception(self, trainer: Any, pl_module: nn.Module, exception: BaseException) -> None:
        """Do the same as at the end, after an error or an interrupt; a known error of torch gets a note."""
        self._training.fail(exception, prints=trainer.is_global_zero)
        self._training.end(prints=trainer.is_global_zero)
