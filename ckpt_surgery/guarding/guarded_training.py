"""What the integrations of trainers share: wrapping and guarding from the start of a training to its end.

An integration is a thin class in a file of its own, which alone imports the trainer: it takes the options, and calls a
`GuardedTraining` where the trainer calls it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from functools import partial

from torch import nn

from ckpt_surgery.errors import GuardError, SurgeryWarning
from ckpt_surgery.guarding.report import GuardReport
from ckpt_surgery.guarding.takeover import Takeover, TakeoverOptions


class GuardedTraining:
    """Wraps and guards the models of a trainer, in one training after another.

    Call `begin` with the model before its first step; or, if nobody can name the model, `begin_within` with the module
    around it, and `check` after each step. Call `fail` with an error that ends the training, and `end` in any case.
    `reports` are those of the training that ended last.
    """

    def __init__(self, options: TakeoverOptions) -> None:
        self.reports: Sequence[GuardReport] = ()
        self._options = options
        self._takeover: Takeover | None = None

    def begin(self, model: nn.Module) -> None:
        """Wrap and guard a model. Raises GuardError as `check` does."""
        self._begin().wrap_and_guard(model)
        self.check()

    def begin_within(self, module: nn.Module) -> None:
        """Wrap and guard the models that run inside a module, which need not be called itself."""
        self._begin().install_within(module)

    def check(self) -> None:
        """Stop the search once all models are found and settled.

        Raises:
            GuardError: a model can't be wrapped or watched, and `on_fault` is "raise". Everything is undone then.
        """
        if (takeover := self._takeover) is None:
            return
        if takeover.settled:
            takeover.search.undo()
        problems = [problem for trained in takeover.trained for problem in trained.problems]
        if problems and self._options.guard_options.on_fault == "raise":
            self._remove()
            raise GuardError(problems[0])

    def fail(self, error: BaseException, *, prints: bool) -> None:
        """Add a note to a known error of torch. If memory ran out and `prints`, print what took it."""
        if self._takeover is None:
            return
        self._takeover.explain(error)
        if prints and (failed := self._takeover.failed) is not None:
            print(failed.sentence, file=sys.stderr)

    def end(self, *, prints: bool) -> None:
        """Keep the reports, and print them if `prints` (on the first rank). Then undo everything."""
        if self._takeover is None:
            return
        self.reports = tuple(report for each in self._takeover.trained if (report := each.report) is not None)
        self._remove()
        if prints:
            for report in self.reports:
                print(report, file=sys.stderr)

    def _begin(self) -> Takeover:
        self._remove()  # a trainer may begin again without an end, after an error
        self.reports = ()
        self._takeover = Takeover(self._options, partial(warnings.warn, category=SurgeryWarning, stacklevel=2))
        return self._takeover

    def _remove(self) -> None:
        takeover, self._takeover = self._takeover, None
        if takeover is not None:
            takeover.remove()
