"""The machinery of the tests: the right ones are skipped, and an environment that runs none fails."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import missing

ROOT = Path(__file__).parent.parent
TESTS = """
import pytest

@pytest.mark.torch
def test_torch(): ...

@pytest.mark.transformers4
def test_four(): ...

@pytest.mark.both
def test_both(): ...
"""
PLAIN = "\ndef test_plain(): ...\n"


def run(folder: Path, tests: str, transformers: str, *options: str) -> tuple[int, str]:
    """Run `tests` below this project's conftest where that version of transformers seems installed."""
    shutil.copy(ROOT / "tests/conftest.py", folder / "conftest.py")
    shutil.copy(ROOT / "pyproject.toml", folder / "pyproject.toml")
    (folder / "test_it.py").write_text(tests)
    installed = folder / "site"
    if transformers:
        info = installed / f"transformers-{transformers}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: transformers\nVersion: {transformers}\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "xdist", "-vv", "test_it.py", *options]
    paths = os.pathsep.join([str(installed), os.environ.get("PYTHONPATH", "")])
    settings = {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment = {**os.environ, **settings, "COLUMNS": "200"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def outcomes(output: str) -> dict[str, str]:
    lines = [line.removeprefix("test_it.py::").split() for line in output.splitlines() if "test_it.py::test_" in line]
    return {words[0]: words[1] for words in lines}


@pytest.mark.parametrize(
    ("version", "ran"),
    [("4.57.6", {"test_four", "test_both"}), ("5.23.0", {"test_torch", "test_both"}), ("3.0.0", set())],
    ids=["transformers 4", "transformers 5", "another transformers"],
)
def test_each_transformers_runs_its_own_tests(tmp_path: Path, version: str, ran: set[str]) -> None:
    code, output = run(tmp_path, TESTS, version)
    assert code == 0, output
    assert {name for name, outcome in outcomes(output).items() if outcome == "PASSED"} == ran
    assert f"transformers {version[0]} is installed" in output


@pytest.mark.parametrize("mark", ["torch", "transformers4", "both"])
def test_without_torch_no_test_of_live_models_runs(mark: str) -> None:
    assert missing(frozenset({mark}), 5, torch=False) == "needs torch, which is not installed"
    assert missing(frozenset({"slow"}), 0, torch=False) == ""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_in_which_every_test_is_skipped_fails_when_asked_to(tmp_path: Path, workers: str) -> None:
    code, output = run(tmp_path, TESTS, "3.0.0", "--fail-if-none-ran", "-n", workers)
    assert "3 skipped" in output
    assert code == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_in_which_one_test_ran_succeeds(tmp_path: Path, workers: str) -> None:
    code, output = run(tmp_path, TESTS + PLAIN, "3.0.0", "--fail-if-none-ran", "-n", workers)
    assert code == 0, output
    assert "1 passed, 3 skipped" in output


@pytest.mark.parametrize(
    ("workers", "order"),
    [
        ((), ["test_it.py", "test_it.py", "test_late.py"]),
        (("-n", "1", "--dist", "loadfile", "--no-loadscope-reorder"), ["test_late.py", "test_it.py", "test_it.py"]),
    ],
    ids=["in one process", "on workers"],
)
def test_files_with_a_slow_test_start_first_on_workers(
    tmp_path: Path, workers: tuple[str, ...], order: list[str]
) -> None:
    (tmp_path / "test_late.py").write_text("import pytest\n\n@pytest.mark.slow\ndef test_slow(): ...\n")
    code, output = run(tmp_path, "def test_first(): ...\ndef test_second(): ...\n", "5.23.0", "test_late.py", *workers)
    assert code == 0, output
    passed = re.findall(r"(test_\w+\.py)::\w+ PASSED|PASSED (test_\w+\.py)", output)
    assert ["".join(names) for names in passed] == order


def test_a_run_in_the_background_hears_interrupts() -> None:
    script = (
        "import signal\n"
        "from tests.conftest import hear_interrupts\n"
        "assert signal.getsignal(signal.SIGINT) is signal.getsignal(signal.SIGHUP) is signal.SIG_IGN\n"
        "hear_interrupts()\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        "assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL\n"
    )

    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    subprocess.run([sys.executable, "-c", script], cwd=ROOT, preexec_fn=ignore, check=True)
