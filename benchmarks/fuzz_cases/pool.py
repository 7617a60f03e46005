"""Many cases on worker processes: one that hangs or dies costs one case, and a new process takes its place."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch

from benchmarks.fuzz_cases.case import Case
from benchmarks.fuzz_cases.judge import FAILURES, Outcome, Result, judge
from benchmarks.fuzz_cases.minimise import minimised
from benchmarks.fuzz_cases.run import SelfCheck, treatment_of

SECONDS = 60.0
"""How long a case may take, with its minimising."""
_START_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Judged:
    """The result of a case, and that of the smallest case that fails alike; the same where it was not minimised."""

    result: Result
    smallest: Result


@dataclass(eq=False)
class _Worker:
    """A process, the connection to it, the case that it has, and the time by which it has to answer.

    It is `starting` until it has said that it is there.
    """

    process: BaseProcess
    connection: Connection
    deadline: float
    case: Case | None = None
    starting: bool = True

    @property
    def busy(self) -> bool:
        """Whether something is to be heard from it."""
        return self.starting or self.case is not None


@dataclass(frozen=True, slots=True)
class Work:
    """What a worker does with each case: the interval of the self-check, and whether it minimises what fails."""

    self_check: SelfCheck | None = None
    minimise: bool = True

    def judged(self, case: Case) -> Judged:
        """The result of a case."""
        run = partial(judge, treatment=treatment_of(self.self_check))
        result = run(case)
        return Judged(result, minimised(result, run) if self.minimise and result.outcome in FAILURES else result)


def judged(cases: Iterable[Case], jobs: int, work: Work = Work(), *, seconds: float = SECONDS) -> Iterator[Judged]:
    """The result of each case, in the order in which they end. The worker processes end with the cases.

    Raises RuntimeError where a process cannot start.
    """
    waiting = iter(cases)
    workers = [_started(work) for _ in range(jobs)]
    try:
        while busy := {worker.connection: worker for worker in workers if worker.busy}:
            soonest = min(worker.deadline for worker in busy.values()) - time.monotonic()
            ready = wait(list(busy), max(soonest, 0.0))
            for connection, worker in busy.items():
                if connection not in ready and time.monotonic() < worker.deadline:
                    continue
                answer = _answer(worker, connection in ready)
                if isinstance(answer, Outcome):
                    worker.process.kill()
                    worker.process.join()
                    workers[workers.index(worker)] = _started(work)
                    answer = _lost(worker.case, answer)
                else:
                    _give(worker, next(waiting, None), seconds)
                if answer is not None:
                    yield answer
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()


def _started(work: Work) -> _Worker:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, work), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours, time.monotonic() + _START_SECONDS)


def _give(worker: _Worker, case: Case | None, seconds: float) -> None:
    worker.case, worker.starting, worker.deadline = case, False, time.monotonic() + seconds
    if case is not None:
        worker.connection.send(case)


def _answer(worker: _Worker, ready: bool) -> Judged | Outcome | None:
    """What a worker has sent: None once it has started; an outcome where it hangs or has died."""
    if not ready:
        return Outcome.HANG
    try:
        answer: Judged | None = worker.connection.recv()
    except (EOFError, OSError):
        return Outcome.CRASHED
    return answer


def _lost(case: Case | None, outcome: Outcome) -> Judged:
    """What becomes of the case of a worker that is gone."""
    if case is None:
        raise RuntimeError("a process that judges cases could not start")
    result = Result(case, outcome, "no end in time" if outcome is Outcome.HANG else "the process died")
    return Judged(result, result)


def _work(connection: Connection, work: Work) -> None:
    """Judge cases until there are none: the body of a worker process."""
    torch.set_num_threads(1)
    gc.freeze()  # a surgery collects garbage now and then: what was imported need not be looked through
    connection.send(None)
    while True:
        try:
            case = connection.recv()
        except EOFError:
            return
        connection.send(work.judged(case))
