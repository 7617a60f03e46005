"""The guard as a callback of Lightning. Only this file imports Lightning, and nothing else imports this file."""

# ruff: noqa: E402

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

from ckpt_surgery.optional import is_installed, load_runtime, missing_package

load_runtime("LightningGuard", ("torch",))

from torch import nn

from ckpt_surgery.errors import SurgeryWarning
from ckpt_surgery.guarding.guard import GuardOptions, OnFault
from ckpt_surgery.guarding.report import GuardReport
from ckpt_surgery.guarding.takeover import Takeover, TakeoverOptions

if is_installed("lightning"):
    from lightning.pytorch.callbacks import Callback
elif is_installed("pytorch_lightning"):
    from pytorch_lightning.callbacks import Callback
else:
    raise missing_package("LightningGuard", "lightning")


class LightningGuard(Callback):  # type: ignore[misc]  # Lightning is not read by the type checker
    """Guards the models that a LightningModule trains, from the start of the training to its end.

    A LightningModule is seldom called itself: the models are those of its modules that its training step calls.
    `reports` hold what was seen of them; they are also printed at the end on the first rank.

    Args:
        wrap: call `wrap_blocks` on the models, and undo that at the end. With None that is done where their library's
            checkpointing is switched on, with its options.
        every, prove, on_fault, patience: as in `guard`.

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
        self._options = TakeoverOptions(wrap, guard_options=GuardOptions(every, prove, on_fault, patience))
        self._takeover: Takeover | None = None
        self.reports: Sequence[GuardReport] = ()

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Start to look for the models in the first step."""
        self._takeover = Takeover(self._options, partial(warnings.warn, category=SurgeryWarning, stacklevel=2))
        self._takeover.install_on(pl_module)

    def on_train_batch_end(self, trainer: Any, pl_module: nn.Module, *_: Any) -> None:
        """Stop looking once the models are known."""
        if self._takeover is not None and self._takeover.settled:
            self._takeover.looking.undo()

    def on_train_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Stop watching, print what was seen, and undo what was done."""
        takeover, self._takeover = self._takeover, None
        if takeover is None:
            return
        self.reports = tuple(report for trained in takeover.trained if (report := trained.report) is not None)
        takeover.remove()
        if trainer.is_global_zero:
            for report in self.reports:
                print(report, file=sys.stderr)

    def on_exception(self, trainer: Any, pl_module: nn.Module, exception: BaseException) -> None:
        """Do the same after an error or an interrupt; a known error of torch gets a note."""
        if self._takeover is not None:
            self._takeover.explain(exception)
            if (failed := self._takeover.failed) is not None and trainer.is_global_zero:
                print(failed.sentence, file=sys.stderr)
        self.on_train_end(trainer, pl_module)
