"""Workers at their jobs: who does what next, who takes too long, and what becomes of a job whose worker died.

Knows the events of `examine` and nothing of models. What is found is handed over job by job.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

from ckpt_surgery.measure.report import Report, report_of
from ckpt_surgery.measure.results import MODES, Fault, Level, Mode, ModeReport, Repair
from ckpt_surgery.survey.examination import AFTER, SURGERY, broken_mode, examinable
from ckpt_surgery.survey.targets import SurveyTarget
from ckpt_surgery.survey.worker_pool import Worker, WorkerExit, WorkerPool

LARGEST = 1_500_000_000
"""Resident bytes (those shared with the template included) above which a worker is replaced after a job."""


@dataclass(frozen=True, slots=True)
class SurveyOptions:
    """What is looked at in every job: `examination` names the class that does it, `timeout` is in seconds a phase."""

    modes: tuple[Mode, ...]
    levels: str | tuple[Level, ...]
    timeout: float
    examination: str
    call: str = "ckpt_surgery.survey.examination:examine"


@dataclass(slots=True)
class SurveyJob:
    """One job and what has become known of it. `phase` is the last one that began: build, reference, a mode and so on.

    `repair` is None where no surgery is asked for. `files` are the digests of what a factory was read from.
    `stopped_after` is the limit in seconds where some phase did not end within it.
    """

    index: int
    job: SurveyTarget
    modes: tuple[Mode, ...]
    base: Report | None = None
    found: dict[Mode, ModeReport] = field(default_factory=dict)
    repair: Repair | None = None
    phase: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    stopped_after: float | None = None

    @property
    def left(self) -> tuple[Mode, ...]:
        """The modes that nothing is known of yet."""
        if self.base is not None and self.base.problem:
            return ()
        return tuple(mode for mode in self.modes if mode not in self.found)

    @property
    def left_after(self) -> tuple[Mode, ...]:
        """The modes that nothing is known of yet as they are after the surgery."""
        if self.repair is None or self.repair.problem or (self.base is not None and not examinable(self.base)):
            return ()
        known = {found.mode for found in self.repair.modes}
        return tuple(mode for mode in self.modes if mode not in known)

    @property
    def group(self) -> str:
        """Jobs of one group import the same modules, so that one worker does them one after the other."""
        return self.job.model_type or self.job.argument

    def report(self) -> Report:
        """All that is known, as the report on the job."""
        base = self.base or self.unbuilt("nothing was found out")
        found = tuple(self.found[mode] for mode in self.modes if mode in self.found)
        repair = self.repair if examinable(base) else None
        seconds: dict[str, float] = {**base.seconds, **{mode.mode: mode.seconds for mode in found}}
        seconds |= {f"after {mode.mode}": mode.seconds for mode in (repair.modes if repair else ())}
        return replace(base, modes=found, seconds=seconds, repair=repair)

    def repaired(self, found: Repair) -> None:
        """Take in what has become known of the surgery, or of a mode after it."""
        known = self.repair or Repair()
        self.repair = replace(found, modes=(*known.modes, *found.modes), surgery=found.surgery or known.surgery)

    def unbuilt(self, problem: str) -> Report:
        """A report that says why there is no verdict."""
        job = self.job
        return Report(job.model, job.model_type, job.variant, job.argument, problem=problem)


@dataclass(slots=True, eq=False)
class _Seat:
    """The place of one worker. `since` and `deadline` are those of the phase that its work is in."""

    worker: Worker | None = None
    work: SurveyJob | None = None
    group: str = ""
    since: float = 0.0
    deadline: float = 0.0


class Scheduler:
    """Up to `seats` workers of a pool, which do all of `works`; `done` is called with each as it is finished."""

    def __init__(
        self,
        pool: WorkerPool,
        works: Iterable[SurveyJob],
        plan: SurveyOptions,
        seats: int,
        done: Callable[[SurveyJob], None],
    ) -> None:
        self._pool, self._plan, self._done = pool, plan, done
        self._queues: dict[str, deque[SurveyJob]] = {}
        for work in works:
            self._queues.setdefault(work.group, deque()).append(work)
        self._seats = [_Seat() for _ in range(seats)]

    def run(self) -> None:
        """Do everything. Raises WorkerPoolError where no worker can be had; no worker is left behind in any case."""
        try:
            for seat in self._seats:
                self._occupy(seat)
            while busy := [seat for seat in self._seats if seat.work is not None]:
                for seat in _ready(busy):
                    self._hear(seat)
        finally:
            for seat in self._seats:
                if seat.worker is not None and seat.work is not None:
                    seat.worker.kill()
                elif seat.worker is not None:
                    seat.worker.close()

    def _occupy(self, seat: _Seat) -> None:
        """Give a seat its next work, or nothing where nothing is left."""
        lengths = {group: len(queue) for group, queue in self._queues.items()}
        seat.group = next_group(lengths, seat.group, {other.group for other in self._seats})
        seat.work = self._queues[seat.group].popleft() if seat.group else None
        if seat.work is not None:
            self._start(seat, seat.work)
        elif seat.worker is not None:
            seat.worker.close()
            seat.worker = None

    def _start(self, seat: _Seat, work: SurveyJob) -> None:
        work.phase = ""
        if seat.worker is None:
            seat.worker = self._pool.worker()
        plan = self._plan
        modes = {"modes": work.left, "after": work.left_after}
        seat.worker.ask(plan.call, job=work.job.to_dict(), **modes, levels=plan.levels, examination=plan.examination)
        self._begin(seat)

    def _begin(self, seat: _Seat) -> None:
        seat.since = monotonic()
        seat.deadline = seat.since + self._plan.timeout

    def _hear(self, seat: _Seat) -> None:
        """Take in what a worker has to say; notice that it died, or that it takes too long."""
        worker, work = seat.worker, seat.work
        if worker is None or work is None:
            return
        for event in worker.receive():
            if event["event"] == "phase":
                work.phase = event["name"]
                self._begin(seat)
            elif event["event"] == "report":
                work.base = work.base or report_of(event["report"])
                work.files = event["files"]
            elif event["event"] == "mode":
                work.found |= {found.mode: found for found in report_of(event["report"]).modes}
            elif event["event"] == "repair":
                work.repaired(report_of(event["report"]).repair or Repair())
            elif event["event"] == "done":
                self._finish(seat, work, event["resident"])
                return
            elif event["event"] == "failed":
                worker.close()
                self._lose(seat, work, WorkerExit(f"it raised {event['error']}"))
                return
        if worker.ended:
            self._lose(seat, work, worker.ending())
        elif monotonic() >= seat.deadline:
            work.stopped_after = self._plan.timeout
            how = f"it does not end within {self._plan.timeout:g} s"
            self._lose(seat, work, replace(worker.stop(), how=how))

    def _finish(self, seat: _Seat, work: SurveyJob, resident: int) -> None:
        if resident > LARGEST and seat.worker is not None:
            seat.worker.close()
            seat.worker = None
        self._done(work)
        self._occupy(seat)

    def _lose(self, seat: _Seat, work: SurveyJob, ending: WorkerExit) -> None:
        """A worker was lost with the job half done: say so there, and have another do what is left of it."""
        seat.worker = None
        took = monotonic() - seat.since
        if work.phase in MODES:
            mode = next(mode for mode in MODES if mode == work.phase)
            work.found[mode] = replace(self._broken(mode, _expected(ending), ending), seconds=took)
        elif work.phase in AFTER:
            found = replace(self._broken(AFTER[work.phase], _expected(ending), ending), seconds=took)
            work.repaired(Repair((found,)))
        elif work.phase == SURGERY:
            self._fail_after(work, "a surgery that can be done", ending)
        elif work.base is None:
            what = "the run without checkpointing" if work.phase == "reference" else "building it"
            work.base = work.unbuilt(f"{what} failed: {ending}")
        else:
            expected = "the model to be built a second time"
            work.found |= {mode: self._broken(mode, expected, ending) for mode in work.left}
            self._fail_after(work, expected, ending)
        if work.left or work.left_after:
            self._start(seat, work)
        else:
            self._done(work)
            self._occupy(seat)

    def _broken(self, mode: Mode, expected: str, ending: WorkerExit) -> ModeReport:
        return broken_mode(mode, Fault("run", expected, str(ending)), self._plan.levels)

    def _fail_after(self, work: SurveyJob, expected: str, ending: WorkerExit) -> None:
        """All that is left to be examined after the surgery has failed."""
        for mode in work.left_after:
            work.repaired(Repair((self._broken(mode, expected, ending),)))


def next_group(lengths: Mapping[str, int], own: str, begun: Collection[str]) -> str:
    """Whose job a worker does next: of the group it knows, of one that nobody has begun, or of the longest.

    `lengths` are the jobs left in each group. Empty where none is left.
    """
    left = {group: length for group, length in lengths.items() if length}
    if own in left:
        return own
    return next((group for group in left if group not in begun), "") or max(left, key=left.__getitem__, default="")


def _ready(busy: Sequence[_Seat]) -> list[_Seat]:
    """Wait until a worker says something, or takes too long; those that do."""
    poll = select.poll()
    seats: dict[int, _Seat] = {}
    for seat in busy:
        for pipe in seat.worker.pipes() if seat.worker else ():
            poll.register(pipe, select.POLLIN)
            seats[pipe] = seat
    patience = min(seat.deadline for seat in busy) - monotonic()
    heard: dict[_Seat, Any] = {seats[pipe]: None for pipe, _ in poll.poll(max(0.0, patience) * 1000 + 1)}
    now = monotonic()
    return list(heard | {seat: None for seat in busy if now >= seat.deadline})


def _expected(ending: WorkerExit) -> str:
    backward = any(frame.rpartition(" in ")[2] in ("_engine_run_backward", "backward") for frame in ending.frames)
    return "the backward to end" if backward else "the step to end"
