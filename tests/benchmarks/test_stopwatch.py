"""The stopwatch measures wall time and the largest process, and nothing that failed."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

import pytest

from benchmarks.stopwatch import CommandFailed, measure

MEGABYTE = 10**6


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_wall_time_counts_waiting() -> None:
    assert 0.5 <= measure(python("import time; time.sleep(0.5)")).seconds < 10


def test_a_short_peak_of_a_worker_is_counted() -> None:
    worker = "bytearray(200_000_000)"
    run = measure(python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{worker}'])"))
    assert run.peak >= 200 * MEGABYTE


def test_what_a_command_says_comes_back_and_of_much_the_end() -> None:
    code = "import sys; print('start', 'x' * 5000, 'end'); print('woe', file=sys.stderr)"
    run = measure(python(code), keep=100)
    assert run.output.endswith("end\n")
    assert len(run.output) == 100
    assert run.errors == "woe\n"


def test_environment_and_folder_reach_the_command_beside_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROM_HERE", "kept")
    code = "import os; print(os.environ['FROM_HERE'], os.environ['GIVEN'], os.getcwd())"
    run = measure(python(code), environment={"GIVEN": "added"}, folder=tmp_path)
    assert run.output.split() == ["kept", "added", str(tmp_path.resolve())]


def test_a_failed_command_is_not_measured_and_its_last_lines_are_shown() -> None:
    with pytest.raises(CommandFailed, match=r"ended with 3: no room$"):
        measure(
            python("import sys; print('much ado', file=sys.stderr); print('no room', file=sys.stderr); sys.exit(3)")
        )


def test_a_code_that_is_accepted_is_no_failure_and_then_0_is_one() -> None:
    assert measure(python("raise SystemExit(1)"), accept=(1,)).seconds > 0
    with pytest.raises(CommandFailed, match="ended with 0: no words"):
        measure(python("pass"), accept=(1,))


def test_a_command_that_is_not_there_is_one_clear_sentence() -> None:
    with pytest.raises(CommandFailed, match=r"^/no/such/tool could not be started \(No such file"):
        measure(["/no/such/tool"])


def test_an_interrupt_ends_the_command_and_its_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "pid"
    code = f"import pathlib, subprocess; p = subprocess.Popen(['sleep', '60']); pathlib.Path({str(mark)!r}).write_text"
    started: list[int] = []

    def interrupted(pid: int, options: int) -> object:
        started.append(pid)
        while not mark.exists() or not mark.read_text():
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "wait4", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure(python(f"{code}(str(p.pid)); p.wait()"))
    with contextlib.suppress(ChildProcessError):  # subprocess may have collected it already
        os.waitpid(started[0], 0)
    assert ends(int(mark.read_text()))


def ends(pid: int) -> bool:
    """Wait up to half a minute for a process to end; it may be a zombie."""
    for _ in range(3000):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        status = Path(f"/proc/{pid}/status")
        if status.exists() and "State:\tZ" in status.read_text():
            return True
        time.sleep(0.01)
    return False
