"""Commands that run at once: each has its own trees, and none outlives an error or an interrupt."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.upstream.run.interpreter import PythonInterpreter
from ckpt_surgery.upstream.run.parallel import TreePair, run_all, run_all_in_trees

PATIENCE = 20.0
SLEEPING = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"


@pytest.fixture
def python() -> PythonInterpreter:
    return PythonInterpreter(Path(sys.executable))


class Sleeper:
    """A command that would run for minutes."""

    def __init__(self, python: PythonInterpreter, folder: Path) -> None:
        self.python, self.folder = python, folder
        self.file = folder / "started"

    def run(self) -> int:
        return self.python.run(["-S", "-c", SLEEPING, str(self.file)], self.folder).code

    def wait_for(self) -> None:
        limit = time.monotonic() + PATIENCE
        while not (self.file.exists() and self.file.read_text()) and time.monotonic() < limit:
            time.sleep(0.01)

    @property
    def ended(self) -> bool:
        try:
            os.kill(int(self.file.read_text()), 0)
        except ProcessLookupError:
            return True
        return False


@pytest.fixture
def sleeper(python: PythonInterpreter, tmp_path: Path) -> Sleeper:
    return Sleeper(python, tmp_path)


def fail_after(sleeper: Sleeper) -> int:
    sleeper.wait_for()
    raise UpstreamError("the disk is full")


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_results_come_in_the_order_of_the_tasks_and_no_more_run_at_once_than_may(
    python: PythonInterpreter, workers: int
) -> None:
    running: list[int] = []
    most = []

    def task(number: int) -> int:
        running.append(number)
        most.append(len(running))
        time.sleep(0.01 * (5 - number))
        running.remove(number)
        return number

    assert run_all([partial(task, number) for number in range(5)], python, workers) == list(range(5))
    assert max(most) <= workers
    assert run_all([], python, workers) == []


def test_an_error_stops_the_commands_of_the_others_and_is_raised(sleeper: Sleeper) -> None:
    begun = time.monotonic()
    tasks: list[Callable[[], int]] = [sleeper.run, partial(fail_after, sleeper), sleeper.run]
    with pytest.raises(UpstreamError, match=r"^the disk is full$"):
        run_all(tasks, sleeper.python, 2)
    assert time.monotonic() - begun < PATIENCE
    assert sleeper.ended


def test_an_interrupt_leaves_no_process(sleeper: Sleeper) -> None:
    def interrupt() -> None:
        sleeper.wait_for()
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run_all([sleeper.run, lambda: 0], sleeper.python, 2)
    assert sleeper.ended


def test_no_two_tasks_have_the_same_trees_at_once(python: PythonInterpreter, tmp_path: Path) -> None:
    pairs = [TreePair(tmp_path / f"base-{number}", tmp_path / f"series-{number}") for number in range(3)]
    taken: set[TreePair] = set()

    def task(pair: TreePair) -> TreePair:
        assert pair not in taken
        taken.add(pair)
        time.sleep(0.01)
        taken.remove(pair)
        return pair

    assert set(run_all_in_trees([task] * 12, pairs, python)) <= set(pairs)
    assert run_all_in_trees([task] * 2, pairs[:1], python) == pairs[:1] * 2
