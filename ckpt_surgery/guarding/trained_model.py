"""A model that a process trains: who checkpoints it, what was done to it, what was seen, and what to say about it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from weakref import ref

from torch import nn

from ckpt_surgery.guarding.guard import Guard
from ckpt_surgery.guarding.report import GuardReport
from ckpt_surgery.measure.own_checkpoints import checkpoint_call, is_composable, recomputing_call
from ckpt_surgery.runtime.blocks.discovery import is_layer
from ckpt_surgery.runtime.blocks.library_switch import checkpoints_in_evaluation, flags_of, has_inline_branch
from ckpt_surgery.torch_names import COMPOSABLE_CHECKPOINT
from ckpt_surgery.undo import Undoable

LOOKS = 3
"""In this many forwards, calls of modules are searched for what checkpoints them."""


class Trained:
    """A model that was trained, or what is known about it if the script has dropped it.

    `name` is that of its class, and `problems` are what went wrong. With `checkpoints_itself`, parts of it were run
    again in a backward, but not by the switch of a library or by this package; `place` is the file and line of the
    call that did it, if that is known. With `evaluating` it was trained only in evaluation mode, and `asked` tells
    whether checkpointing was switched on then. With `calls_checkpoint` its code calls something that checkpoints,
    perhaps functions in which no module runs. With `can_be_wrapped` it has blocks that --wrap would checkpoint.
    `overrides` are the calls that have switched checkpointing on again with other options, and `replaced` is the line
    of the script's own checkpoint call that `RunThrough` replaces.
    """

    def __init__(self, model: nn.Module) -> None:
        self.name = type(model).__name__
        self.problems: list[str] = []
        self.checkpoints_itself = False
        self.place = ""
        self.evaluating = self.asked = False
        self.can_be_wrapped = self.calls_checkpoint = False
        self.replaced = ""
        self.overrides: list[list[str]] = []
        self._report: GuardReport | None = None
        self._table = ""
        self._has_table = self.is_refused = False
        self._guard: Callable[[], Guard | None] = lambda: None
        self._surgery: Callable[[], Undoable | None] = lambda: None

    def follow(self, guard: Guard | None, surgery: Undoable | None) -> None:
        """Note the guard and the surgery that the model got."""
        self._table = "" if surgery is None else str(surgery)
        self._surgery = (lambda: surgery) if guard is None or surgery is None else ref(surgery)
        if guard is not None:  # it holds the surgery, and both are freed with the model
            self._guard = ref(guard)
            guard.at_check, guard.at_end = self._take_table, partial(self._keep_report, surgery)

    @property
    def guard(self) -> Guard | None:
        """Its guard; None if it could not have one, or the model is gone."""
        return self._guard()

    @property
    def surgery(self) -> Undoable | None:
        """Its surgery, or the result of the operation; None if there is none, or the model is gone."""
        return self._surgery()

    @property
    def report(self) -> GuardReport | None:
        """The report of its guard; None if it could not have one."""
        watching = self._guard()
        return self._report if watching is None else watching.report()

    @property
    def table(self) -> str:
        """The table of its surgery in the last checked step; empty if it has none, or was given back."""
        if self.is_refused:
            return ""
        return self._table if self.surgery is None or self._has_table else str(self.surgery)

    @property
    def said(self) -> list[str]:
        """What to say besides its table and report, one sentence each."""
        said = [f"{self.name}: {problem}" for problem in self.problems]
        if self.checkpoints_itself:
            where = f" at {self.place}" if self.place else ""
            watched = "" if self.report else ", and ended before it was watched"
            said.append(f"{self.name} checkpoints by itself{where}{watched}")
        elif self.evaluating:
            why = ": transformers does not checkpoint in it, so call model.train()" if self.asked else ""
            said.append(f"{self.name} trained in evaluation mode{why or ', without checkpointing'}")
        elif self.calls_checkpoint and (self.report is None or not self.report.blocks):
            said.append(
                f"{self.name}: no module of it was recomputed, so that nothing is checkpointed but perhaps functions, "
                "which are not watched"
            )
        elif not (said or self.table) and (self.report is None or self.report.recomputed_nothing):
            advice = "; --wrap checkpoints it" if self.can_be_wrapped else ""
            how = "trained without checkpointing" if self.report is None else "no block of it was recomputed"
            what = f" was not checkpointed: {how}" if self.report is not None else f" {how}"
            said.append(f"{self.name}{what}{advice}")
        if self.report is not None and not self.table:
            why = "is not checkpointed, though a backward goes through: no block of it was recomputed"
            said += [f"{self.name}: {stack} {why}" for stack in self.report.kept_stacks]
        if self.replaced:
            place = f"--wrap takes the place of the call at {self.replaced}"
            said.append(f"{self.name} is checkpointed by the script: {place}")
        overrides = dict.fromkeys(f"{self.name}: {override}" for part in self.overrides for override in part)
        return [*said, *overrides]

    def release(self) -> None:
        """Remove its guard and its surgery. Raises CkptSurgeryError if the script has taken the model apart."""
        for change in (self._guard(), self.surgery):
            if change is not None:
                change.__exit__(None, None, None)

    def _take_table(self) -> None:
        """Keep the table of this step: the script may go to evaluation mode after the last one."""
        if self.surgery is not None:
            self._table, self._has_table = str(self.surgery), True

    def _keep_report(self, surgery: Undoable | None, watching: Guard) -> None:
        self._report = watching.report()
        if not self._has_table:
            self._table = "" if surgery is None else str(surgery)


class WaitingModel:
    """A model on which checkpointing is not switched on yet. `forwards` counts those after its first."""

    def __init__(self, model: nn.Module, trained: Trained) -> None:
        self.model = ref(model)
        self.trained = trained
        self.forwards = 0
        parts = list(model.modules())
        self._flags = [(ref(module), flag) for module in parts for flag in flags_of(module)]
        self._in_evaluation = any(map(checkpoints_in_evaluation, parts))
        trained.calls_checkpoint = any(
            has_inline_branch(module) and not (is_layer(module) or flags_of(module)) for module in parts
        )

    def is_in_mode(self, model: nn.Module) -> bool:
        """Tell whether a model is in a mode in which something may checkpoint it."""
        return model.training or self._in_evaluation or self.trained.checkpoints_itself

    def is_switched_on(self) -> bool:
        """Tell whether checkpointing has been switched on since."""
        return any(getattr(module(), flag, False) for module, flag in self._flags)

    def enter(self) -> None:
        """Note whether torch's checkpoint function runs the entered module, in the first forwards."""
        if self.forwards < LOOKS and not self.trained.place:
            self.trained.place = checkpoint_call()
            self.trained.checkpoints_itself |= bool(self.trained.place)

    def enter_again(self) -> None:
        """Note that the model checkpoints by itself, since it runs in the backward; find the call that does it."""
        trained, model = self.trained, self.model()
        trained.checkpoints_itself = True
        if not trained.place and model is not None:
            composable = any(map(is_composable, model.modules()))
            trained.place = COMPOSABLE_CHECKPOINT if composable else recomputing_call()
