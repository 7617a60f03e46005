"""Many cases on worker processes: one that hangs or dies costs one case, and a new process takes its place."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch

from benchmarks.fuzz_cases.case import Case
from benchmarks.fuzz_cases.judge import FAILURES, Outcome, Result, judge
from benchmarks.fuzz_cases.minimise import minimised

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
    """A process, the connection to it, the case that it has, and the time by which it has to answer."""

    process: BaseProcess
    connection: Connection
    case: Case | None = None
    deadline: float = field(default=0.0)


def judged(cases: Iterable[Case], jobs: int, *, minimise: bool = True, seconds: float = SECONDS) -> Iterator[Judged]:
    """The result of each case, in the order in which they end; failures minimised. Processes end with the cases."""
    waiting = iter(cases)
    workers = [_started(minimise) for _ in range(jobs)]
    for worker in workers:
        _give(worker, waiting, seconds + _START_SECONDS)
    try:
        while any(worker.case is not None for worker in workers):
            busy = {worker.connection: worker for worker in workers if worker.case is not None}
            soonest = min(worker.deadline for worker in busy.values()) - time.monotonic()
            ready = wait(list(busy), max(soonest, 0.0))
            for connection, worker in busy.items():
                if connection not in ready and time.monotonic() < worker.deadline:
                    continue
                result, worker = _answer(worker, connection in ready, workers, minimise)
                _give(worker, waiting, seconds if worker is busy[connection] else seconds + _START_SECONDS)
                yield result
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()


def _started(minimise: bool) -> _Worker:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, minimise), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _give(worker: _Worker, waiting: Iterator[Case], seconds: float) -> None:
    worker.case = next(waiting, None)
    worker.deadline = time.monotonic() + seconds
    if worker.case is not None:
        worker.connection.send(worker.case)


def _answer(worker: _Worker, ready: bool, workers: list[_Worker], minimise: bool) -> tuple[Judged, _Worker]:
    """The result of a worker's case, and the worker for the next: another where this one hangs or has died."""
    assert worker.case is not None
    if ready:
        try:
            answer: Judged = worker.connection.recv()
            return answer, worker
        except (EOFError, OSError):
            result = Result(worker.case, Outcome.CRASHED, "the process died")
    else:
        result = Result(worker.case, Outcome.HANG, "no end in time")
    worker.process.kill()
    worker.process.join()
    workers[workers.index(worker)] = replacement = _started(minimise)
    return Judged(result, result), replacement


def _work(connection: Connection, minimise: bool) -> None:
    """Judge cases until there are none: the body of a worker process."""
    torch.set_num_threads(1)
    while True:
        try:
            case = connection.recv()
        except EOFError:
            return
        result = judge(case)
        connection.send(Judged(result, minimised(result) if minimise and result.outcome in FAILURES else result))
