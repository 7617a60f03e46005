"""Examine many model classes, each in a process of its own, and keep the results in a file to go on from."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import warnings
from collections.abc import Callable, Mapping, Sequence
from math import inf
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic, sleep
from typing import Any

TOO_LONG = "took too long"
TOO_LARGE = "took too much memory"
Examine = Callable[[str], Mapping[str, Any]]
"""What is found of the class of this name."""


def survey(
    names: Sequence[str],
    file: Path,
    examine: Examine,
    *,
    jobs: int,
    seconds: float,
    most_bytes: int = 2**63,
    in_all: float = inf,
    first: str = "",
) -> None:
    """Examine each class that `file` does not name yet, at most `jobs` at a time, and append the results.

    After `in_all` seconds no further class is begun.

    A result is a line of json with the class; where there is none, its `problem` says why: an exception, the exit
    code of the process, more than `seconds`, or more than `most_bytes` of resident memory (looked up in /proc). Import
    what `examine` needs before: the processes are forks. `first` is examined before them, in this process and for
    nothing but what that imports.
    """
    done = {row["class"] for row in rows_of(file)}
    waiting = [name for name in names if name not in done]
    if waiting and first:
        with contextlib.suppress(Exception):  # whatever a class does is no fault of the others
            examine(first)
    running: dict[str, tuple[BaseProcess, float]] = {}
    last = monotonic() + in_all
    while waiting or running:
        if monotonic() > last:
            waiting.clear()
        while waiting and len(running) < jobs:
            name = waiting.pop(0)
            process: BaseProcess = get_context("fork").Process(target=_worker, args=(examine, name, file))
            process.start()
            running[name] = (process, monotonic())
        sleep(0.02)
        for name, (process, start) in list(running.items()):
            late, large = monotonic() - start > seconds, _resident_bytes(process) > most_bytes
            if process.is_alive() and not late and not large:
                continue
            if process.is_alive() and process.pid:
                os.kill(process.pid, signal.SIGKILL)
            process.join()
            del running[name]
            if late or large or process.exitcode:
                why = TOO_LONG if late else TOO_LARGE if large else f"exit code {process.exitcode}"
                _append(file, {"class": name, "problem": why})


def rows_of(file: Path) -> list[dict[str, Any]]:
    """The results in a file; a line that was cut off is passed over."""
    rows = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    return rows


def _resident_bytes(process: BaseProcess) -> int:
    """The resident memory of a process; 0 where that cannot be looked up."""
    try:
        pages = Path(f"/proc/{process.pid}/statm").read_text(encoding="utf-8").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _worker(examine: Examine, name: str, file: Path) -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    try:
        _append(file, {"class": name, **examine(name)})
    except Exception as error:  # whatever a class does is its result
        _append(file, {"class": name, "problem": f"{type(error).__name__}: {error}"[:300]})


def _append(file: Path, row: Mapping[str, Any]) -> None:
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(row) + "\n")
