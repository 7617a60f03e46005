"""One command timed and weighed, and tests run by one. Standard library only."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
PYTEST = (sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "-rfE")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?::.+?)(?: - .*)?$", re.MULTILINE)
_COUNTS = re.compile(r"(\d+) (passed|skipped)")
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024
"""What `ru_maxrss` counts in, in bytes."""


class CommandFailed(RuntimeError):
    """A measured command failed. The message is one sentence with the end of its output."""


@dataclass(frozen=True, slots=True)
class Run:
    """A finished command: its seconds, the most resident bytes of any of its processes, and its output."""

    seconds: float
    peak: int = 0
    output: str = ""
    errors: str = ""


def measure(
    command: Sequence[str | Path],
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    accept: Collection[int] = (0,),
    keep: int = 2000,
) -> Run:
    """Run a command to its end with `environment` added to this process's own.

    Args:
        keep: how many bytes of the end of its output and of its messages come back.

    Raises:
        CommandFailed: It cannot be started, or ends with a code that `accept` lacks.
    """
    words = [os.fspath(word) for word in command]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        start = perf_counter()
        streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": errors}
        whole = {**os.environ, **(environment or {})}
        try:
            process = subprocess.Popen(words, env=whole, cwd=folder, start_new_session=True, **streams)  # type: ignore[call-overload]
        except OSError as error:
            raise CommandFailed(f"{words[0]} could not be started ({error.strerror or error})") from error
        try:
            # `wait4` and not `Popen.wait`: only it tells what this one command used, workers included.
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:  # an interrupt ends the command and its workers too
            os.killpg(process.pid, signal.SIGKILL)
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        run = Run(perf_counter() - start, usage.ru_maxrss * _RSS_UNIT, _tail(output, keep), _tail(errors, keep))
    if process.returncode not in accept:
        last = (run.errors or run.output).strip().splitlines()
        raise CommandFailed(f"`{' '.join(words)}` ended with {process.returncode}: {last[-1] if last else 'no words'}")
    return run


def run_tests(*words: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run tests of this project: how many `passed` and were `skipped`, and the names of those that `failed`.

    Raises:
        CommandFailed: pytest does not end by itself.
    """
    ended = measure([*PYTEST, *words], environment=environment, folder=ROOT, accept=(0, 1), keep=2_000_000)
    counts = {what: int(number) for number, what in _COUNTS.findall(ended.output)}
    return {"passed": 0, "skipped": 0, **counts, "failed": _FAILED.findall(ended.output)}


def _tail(file: IO[bytes], keep: int) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - keep))
    return file.read().decode("utf-8", errors="replace")
