"""Run several of the checkout's commands at once, each in worktrees that no other command is using."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ckpt_surgery.upstream.run.interpreter import PythonInterpreter

T = TypeVar("T")

_KILL_AGAIN = 0.2
"""Seconds between kills: a task whose command was killed may start another one before it ends."""


@dataclass(frozen=True, slots=True)
class TreePair:
    """A worktree at the base and one at the tip of a series."""

    base: Path
    series: Path


def run_all_in_trees(
    tasks: Sequence[Callable[[TreePair], T]], pairs: Sequence[TreePair], python: PythonInterpreter
) -> list[T]:
    """Run tasks, as many at once as there are pairs of worktrees, and return their results in order.

    After the first error, or an interrupt, the commands of all others are killed, and that error is raised. Even for a
    single pair there is a thread: an interrupt reaches only the main thread, so it never hits a command being started.
    """
    free: queue.SimpleQueue[TreePair] = queue.SimpleQueue()
    for pair in pairs:
        free.put(pair)

    def run(task: Callable[[TreePair], T]) -> T:
        pair = free.get()
        try:
            return task(pair)
        finally:
            free.put(pair)

    with ThreadPoolExecutor(len(pairs)) as executor:
        futures = [executor.submit(run, task) for task in tasks]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        except BaseException:
            started = [future for future in futures if not future.cancel()]  # `wait` would wait for cancelled ones too
            while wait(started, timeout=_KILL_AGAIN).not_done:
                python.kill_all()
            raise
    return [future.result() for future in futures]
