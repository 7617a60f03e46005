"""One target of a survey while it is examined: what is known of it, and what is left to examine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ckpt_surgery.measure.kinds import FaultKind
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import SURGERY_MODE, Fault, Mode, ModeReport, Repair
from ckpt_surgery.survey.events import Phase, PhaseKind
from ckpt_surgery.survey.target import SurveyOptions, SurveyTarget
from ckpt_surgery.survey.worker_exit import WorkerExit


@dataclass(slots=True)
class SurveyJob:
    """A target and its results so far.

    `base` is its report without modes, None until the reference run is over; `modes` are the modes examined so far.
    `repair` is None if no surgery is asked for. `phase` is the last phase that began, None before the first. `files`
    are the digests of the files that a factory was read from. `stopped_after` is the time limit in seconds that a
    phase exceeded.
    """

    index: int
    target: SurveyTarget
    options: SurveyOptions
    base: Report | None = None
    modes: dict[Mode, ModeReport] = field(default_factory=dict)
    repair: Repair | None = None
    phase: Phase | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    stopped_after: float | None = None

    def without_results(self) -> SurveyJob:
        """Return the same job from its beginning."""
        return SurveyJob(self.index, self.target, self.options, repair=Repair() if self.repair is not None else None)

    @property
    def modes_left(self) -> tuple[Mode, ...]:
        """The modes that are still to be examined."""
        if self.base is not None and self.base.problem:
            return ()
        return tuple(mode for mode in self.options.modes if mode not in self.modes)

    @property
    def surgery_left(self) -> bool:
        """Whether a surgery is asked for, and the model is not examined after it yet."""
        if self.repair is None or (self.base is not None and not self.base.has_model):
            return False
        return not self.repair.problem and not self.repair.modes

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to examine."""
        return not self.modes_left and not self.surgery_left

    @property
    def group(self) -> str:
        """The group: its jobs import the same modules, so that one worker does them one after the other."""
        return self.target.model_type or self.target.argument

    def report(self) -> Report:
        """Return all that is known, as the report on the target."""
        base = self.base or self._without_verdict("nothing was measured")
        modes = tuple(self.modes[mode] for mode in self.options.modes if mode in self.modes)
        repair = self.repair if base.has_model else None
        seconds: dict[str, float] = {**base.seconds}
        seconds |= {Phase(PhaseKind.MODE, run.mode).name: run.seconds for run in modes}
        runs_after = repair.modes if repair else ()
        seconds |= {Phase(PhaseKind.MODE_AFTER, run.mode).name: run.seconds for run in runs_after}
        return replace(base, modes=modes, seconds=seconds, repair=repair)

    def add_repair(self, repair: Repair) -> None:
        """Add what has become known of the surgery, or of the model after it."""
        before = self.repair or Repair()
        self.repair = replace(repair, surgery=repair.surgery or before.surgery)

    def lose_worker(self, worker_exit: WorkerExit, seconds: float) -> None:
        """Record that the worker was lost `seconds` into its phase: a fault of the mode, or why nothing was run."""
        unfinished = FaultKind.BACKWARD_UNFINISHED if worker_exit.in_backward else FaultKind.STEP_UNFINISHED
        match self.phase:
            case Phase(PhaseKind.MODE, mode) if mode is not None:
                run = self._broken(mode, unfinished, worker_exit)
                self.modes[mode] = replace(run, seconds=seconds)
            case Phase(PhaseKind.MODE_AFTER, mode) if mode is not None:
                run = self._broken(mode, unfinished, worker_exit)
                self.add_repair(Repair((replace(run, seconds=seconds),)))
            case Phase(PhaseKind.SURGERY):
                self._fail_after(FaultKind.SURGERY_UNFINISHED, worker_exit)
            case phase if self.base is None:
                was_built = phase is not None and phase.kind is PhaseKind.REFERENCE
                what = "the run without checkpointing" if was_built else "building it"
                self.base = self._without_verdict(f"{what} failed: {worker_exit}")
            case _:
                self.modes |= {
                    mode: self._broken(mode, FaultKind.REBUILD_UNFINISHED, worker_exit) for mode in self.modes_left
                }
                self._fail_after(FaultKind.REBUILD_UNFINISHED, worker_exit)

    def _fail_after(self, kind: FaultKind, worker_exit: WorkerExit) -> None:
        """Report a fault after the surgery, if that is still to be examined."""
        if self.surgery_left:
            self.add_repair(Repair((self._broken(SURGERY_MODE, kind, worker_exit),)))

    def _broken(self, mode: Mode, kind: FaultKind, worker_exit: WorkerExit) -> ModeReport:
        return ModeReport.broken(mode, Fault(kind, details={"error": str(worker_exit)}), self.options.levels)

    def _without_verdict(self, problem: str) -> Report:
        return replace(self.target.empty_report(), problem=problem)
