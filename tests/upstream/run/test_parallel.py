"""Parallel commands: each has separate trees, and none outlives an error or an interrupt."""

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
from ckpt_surgery.upstream.run.parallel import TreePair, run_all_in_trees

PATIENCE = 20.0
SLEEPING = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"


@pytest.fixture
def python() -> PythonInterpreter:
    return PythonInterpreter(Path(sys.executable))


class Sleeper:
    """A command that would run for minutes."""

    def __init__(self, python: PythonInterpreter, folder: Path) -> None:
        self.python, self.folder = python, folder
        self.file = folder / "started"
        self.codes: list[int] = []

    def run(self) -> None:
        self.codes.append(self.python.run(["-S", "-c", SLEEPING, str(self.file)], self.folder).code)

    def wait_for(self) -> None:
        limit = time.monotonic() + PATIENCE
        while not (self.file.exists() and self.file.read_text()) and time.monotonic() < limit:
            time.sleep(0.01)


@pytest.fixture
def sleeper(python: PythonInterpreter, tmp_path: Path) -> Sleeper:
    return Sleeper(python, tmp_path)


def test_an_interrupt_leaves_no_process(sleeper: Sleeper) -> None:
    def interrupt() -> None:
        sleeper.wait_for()
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run_all_in_trees([lambda _: sleeper.run()] * 2, [TreePair(Path("base"), Path("series"))], sleeper.python)
    assert set(sleeper.codes) == {137}


def test_an_error_stops_what_runs_drops_what_waits_and_is_raised(sleeper: Sleeper) -> None:
    def fail(_: TreePair) -> None:
        sleeper.wait_for()
        raise UpstreamError("the disk is full")

    tasks: list[Callable[[TreePair], object]] = [lambda _: sleeper.run(), fail, *[lambda _: sleeper.run()] * 200]
    pairs = [TreePair(Path("base"), Path("series"))] * 2
    with pytest.raises(UpstreamError, match=r"^the disk is full$"):
        run_all_in_trees(tasks, pairs, sleeper.python)
    assert set(sleeper.codes) == {137}
    assert len(sleeper.codes) < 100


def test_no_two_tasks_have_the_same_trees_and_results_are_in_order(python: PythonInterpreter) -> None:
    pairs = [TreePair(Path(f"base-{number}"), Path(f"series-{number}")) for number in range(3)]
    taken: set[TreePair] = set()

    def task(number: int, pair: TreePair) -> int:
        assert pair not in taken
        taken.add(pair)
        time.sleep(0.01)
        taken.remove(pair)
        return number

    for several in (pairs, pairs[:1]):
        assert run_all_in_trees([partial(task, number) for number in range(12)], several, python) == [*range(12)]
