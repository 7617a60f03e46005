"""The stopwatch measures what it says: wall time, processors, memory of main and workers, and nothing that failed."""

from __future__ import annotations

import ast
import contextlib
import os
import sys
import time
from pathlib import Path

import pytest

from benchmarks.stopwatch import CommandFailed, children, high_water, measure, time_parsing

MEGABYTE = 10**6
TWO_PROCESSES = """
import subprocess, sys
bread = bytearray({main})
subprocess.run([sys.executable, "-c", "import time; butter = bytearray({worker}); time.sleep(0.4)"], check=True)
"""
SAMPLED = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no /proc to sample")


def python(code: str) -> list[str]:
    """The command that runs some code."""
    return [sys.executable, "-c", code]


def test_wall_time_counts_waiting_and_processor_time_does_not() -> None:
    run = measure(python("import time; time.sleep(0.5)"))
    assert 0.5 <= run.seconds < 10
    assert 0 < run.processor < run.seconds - 0.2


def test_processor_time_includes_that_of_workers() -> None:
    busy = "import time\\nwhile time.process_time() < 0.5: pass"
    run = measure(python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{busy}'], check=True)"))
    assert run.processor >= 0.5


@SAMPLED
@pytest.mark.parametrize(("main", "worker"), [(150, 40), (40, 150)])
def test_main_process_and_worker_are_weighed_apart(main: int, worker: int) -> None:
    run = measure(python(TWO_PROCESSES.format(main=main * MEGABYTE, worker=worker * MEGABYTE)))
    assert main * MEGABYTE <= run.main < (main + 40) * MEGABYTE
    # A child that is seen before it runs its own program still weighs what its parent weighs.
    assert worker * MEGABYTE <= run.worker < (max(main, worker) + 40) * MEGABYTE
    assert run.peak >= max(main, worker) * MEGABYTE


def test_a_peak_shorter_than_any_sample_is_still_counted() -> None:
    # 200 MB are there for a moment only, and the command ends before the sampler first looks.
    run = measure(python("import os; bytearray(200_000_000); os._exit(0)"))
    assert run.peak >= 200 * MEGABYTE


@SAMPLED
def test_a_process_that_is_gone_weighs_nothing_and_has_no_children() -> None:
    gone = 2**22 + 1  # above the largest number that Linux gives to a process
    assert high_water(gone) == 0
    assert children(gone) == []
    assert high_water(os.getpid()) > MEGABYTE


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


def test_a_command_that_fails_is_no_measurement_and_its_last_words_are_told() -> None:
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
    """Whether a process is gone, or dead and not yet collected, within half a minute."""
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


@pytest.mark.parametrize("kept", [True, False])
def test_parsing_is_timed_without_reading_and_what_check_reads_is_parsed(
    tmp_path: Path, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / f"modeling_{name}.py").write_text(f"{name} = 1\n")
    (tmp_path / "test_three.py").write_text("three = 1\n")
    events: list[str] = []
    monkeypatch.setattr(ast, "parse", events.append)
    ticks = iter((10.0, 12.5))

    def clock() -> float:
        events.append("tick")
        return next(ticks)

    assert time_parsing(tmp_path, kept=kept, clock=clock) == 2.5
    assert events == ["tick", "one = 1\n", "two = 1\n", "tick"]


def test_what_does_not_parse_ends_no_timing(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text('print "x"\n')
    assert time_parsing(tmp_path, kept=False) > 0
