"""Give the jobs of a survey to workers: which does what next, and what happens if one dies or takes too long.

This knows the events of `examination`, but no models.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from time import monotonic

from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import ModeReport, Repair
from ckpt_surgery.survey.events import Event, Phase
from ckpt_surgery.survey.job import SurveyJob
from ckpt_surgery.survey.worker import Worker
from ckpt_surgery.survey.worker_exit import ExitKind, WorkerExit
from ckpt_surgery.survey.worker_pool import WorkerPool

MOST_RESIDENT_BYTES = 1_500_000_000
"""Resident bytes above which a worker is replaced after a job, including those shared with the fork server."""

_EXAMINE = "ckpt_surgery.survey.examination:examine"


@dataclass(slots=True, eq=False)
class _WorkerSlot:
    """The place of one worker, with its job. `since` and `deadline` are those of the job's current phase."""

    worker: Worker | None = None
    job: SurveyJob | None = None
    group: str = ""
    since: float = 0.0
    deadline: float = 0.0


class Scheduler:
    """A queue of jobs for up to `workers` workers of a pool, which calls `finished` with each job that is done.

    A job that runs out of time beside others is done again, alone, after all others: only if it runs out of time then
    as well, that is a fault.
    """

    def __init__(
        self, pool: WorkerPool, jobs: Iterable[SurveyJob], workers: int, finished: Callable[[SurveyJob], None]
    ) -> None:
        self._pool, self._finished = pool, finished
        self._queues: dict[str, deque[SurveyJob]] = {}
        for job in jobs:
            self._queues.setdefault(job.group, deque()).append(job)
        self._slots = [_WorkerSlot() for _ in range(workers)]
        self._late: list[SurveyJob] = []

    def run(self) -> None:
        """Do every job, and leave no worker behind, whatever happens.

        Raises:
            WorkerPoolError: no worker can be started.
        """
        try:
            self._do_all()
            del self._slots[1:]
            for job in self._late:
                self._queues.setdefault(job.group, deque()).append(job)
            self._do_all()
        finally:
            for slot in self._slots:
                if slot.worker is not None and slot.job is not None:
                    slot.worker.kill()
                elif slot.worker is not None:
                    slot.worker.close()

    def _do_all(self) -> None:
        for slot in self._slots:
            self._fill(slot)
        while busy := [slot for slot in self._slots if slot.job is not None]:
            # wait until a worker has events or a deadline passes
            poll = select.poll()
            slots: dict[int, _WorkerSlot] = {}
            for slot in busy:
                for pipe in slot.worker.pipes() if slot.worker else ():
                    poll.register(pipe, select.POLLIN)
                    slots[pipe] = slot
            timeout = min(slot.deadline for slot in busy) - monotonic()
            ready = dict.fromkeys(slots[pipe] for pipe, _ in poll.poll(max(0.0, timeout) * 1000 + 1))
            now = monotonic()
            for slot in ready | dict.fromkeys(slot for slot in busy if now >= slot.deadline):
                self._receive(slot)

    def _fill(self, slot: _WorkerSlot) -> None:
        """Give a slot its next job; if there is none, let its worker go."""
        lengths = {group: len(queue) for group, queue in self._queues.items()}
        slot.group = next_group(lengths, slot.group, {other.group for other in self._slots})
        slot.job = self._queues[slot.group].popleft() if slot.group else None
        if slot.job is not None:
            self._start(slot, slot.job)
        elif slot.worker is not None:
            slot.worker.close()
            slot.worker = None

    def _start(self, slot: _WorkerSlot, job: SurveyJob) -> None:
        job.phase = None
        if slot.worker is None:
            slot.worker = self._pool.worker()
        slot.worker.ask(
            _EXAMINE,
            target=job.target.to_dict(),
            modes=job.modes_left,
            fix=job.surgery_left,
            levels=job.options.levels,
            examination=job.options.examination,
            device=job.options.device,
        )
        self._begin_phase(slot, job)

    def _begin_phase(self, slot: _WorkerSlot, job: SurveyJob) -> None:
        slot.since = monotonic()
        slot.deadline = slot.since + job.options.timeout

    def _receive(self, slot: _WorkerSlot) -> None:
        """Handle the events of a worker, its death, or its running out of time."""
        worker, job = slot.worker, slot.job
        if worker is None or job is None:
            return
        for event in worker.receive():
            match Event(event["event"]):
                case Event.PHASE:
                    job.phase = Phase.of(event["kind"], event["mode"])
                    self._begin_phase(slot, job)
                case Event.REPORT:
                    job.base = job.base or Report.from_dict(event["report"])
                    job.files = event["files"]
                case Event.MODE:
                    run = ModeReport.from_dict(event["run"])
                    job.modes[run.mode] = run
                case Event.REPAIR:
                    job.add_repair(Repair.from_dict(event["repair"]) or Repair())
                case Event.DONE:
                    if event["resident"] > MOST_RESIDENT_BYTES:
                        worker.close()
                        slot.worker = None
                    self._finished(job)
                    self._fill(slot)
                    return
                case Event.FAILED:
                    worker.close()
                    self._lose(slot, job, WorkerExit(ExitKind.RAISED, error=event["error"]))
                    return
        if worker.ended:
            self._lose(slot, job, worker.wait())
        elif monotonic() >= slot.deadline:
            worker_exit = worker.stop(job.options.timeout)
            if len(self._slots) > 1:
                slot.worker = None
                self._late.append(job.without_results())
                self._fill(slot)
                return
            job.stopped_after = job.options.timeout
            self._lose(slot, job, worker_exit)

    def _lose(self, slot: _WorkerSlot, job: SurveyJob, worker_exit: WorkerExit) -> None:
        """Record that the worker of a job was lost, and have another one do what is left of it."""
        slot.worker = None
        job.lose_worker(worker_exit, monotonic() - slot.since)
        if job.is_done:
            self._finished(job)
            self._fill(slot)
        else:
            self._start(slot, job)


def next_group(lengths: Mapping[str, int], own: str, begun: Collection[str]) -> str:
    """Return the group whose job a worker does next: its own, else one that nobody has begun, else the longest.

    Args:
        lengths: how many jobs are left in each group.
        own: the group of the worker's last job.
        begun: the groups that some worker has begun.

    Returns:
        The group; empty if no job is left.
    """
    left = {group: length for group, length in lengths.items() if length}
    if own in left:
        return own
    return next((group for group in left if group not in begun), "") or max(left, key=left.__getitem__, default="")
