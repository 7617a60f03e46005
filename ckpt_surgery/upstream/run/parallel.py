"""Several of the checkout's commands at once, each in worktrees that no other uses meanwhile."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ckpt_surgery.upstream.run.interpreter import PythonInterpreter

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TreePair:
    """A worktree at the base and one at the tip of a series."""

    base: Path
    series: Path


def run_all(tasks: Sequence[Callable[[], T]], python: PythonInterpreter, workers: int) -> list[T]:
    """The results of tasks in their order, of which at most `workers` run at once.

    After the first error, or an interrupt, the commands of all others are stopped, and that error is raised.
    """
    if workers == 1 or len(tasks) <= 1:
        return [task() for task in tasks]
    with ThreadPoolExecutor(min(workers, len(tasks))) as executor:
        futures = [executor.submit(task) for task in tasks]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            python.running.stop()
            raise
    return [future.result() for future in futures]


@contextlib.contextmanager
def in_background(task: Callable[[], T], python: PythonInterpreter, workers: int) -> Iterator[Callable[[], T]]:
    """A task that runs beside what the caller does; the function that it gives waits for the result.

    After an error in the caller, or an interrupt, the task's commands are stopped. With one worker, it runs at once.
    """
    if workers == 1:
        result = task()
        yield lambda: result
        return
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(task)
        try:
            yield future.result
        except BaseException:
            python.running.stop()
            raise


def run_all_in_trees(
    tasks: Sequence[Callable[[TreePair], T]], pairs: Sequence[TreePair], python: PythonInterpreter
) -> list[T]:
    """The same for tasks that need worktrees: as many run at once as there are pairs."""
    free: queue.SimpleQueue[TreePair] = queue.SimpleQueue()
    for pair in pairs:
        free.put(pair)

    def run(task: Callable[[TreePair], T]) -> T:
        pair = free.get()
        try:
            return task(pair)
        finally:
            free.put(pair)

    return run_all([lambda task=task: run(task) for task in tasks], python, len(pairs))  # type: ignore[misc]
