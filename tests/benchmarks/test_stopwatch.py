"""The stopwatch measures wall time and the largest process, and nothing that failed."""

from __future__ import annotations

import sys

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


def test_a_failed_command_is_not_measured_and_its_last_lines_are_shown() -> None:
    with pytest.raises(CommandFailed, match=r"ended with 3: no room$"):
        measure(
            python("import sys; print('much ado', file=sys.stderr); print('no room', file=sys.stderr); sys.exit(3)")
        )
