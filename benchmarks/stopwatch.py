"""One command timed and weighed: wall and processor seconds, and the peak memory of its main process and workers.

Standard library only, so that a process which imports this stays small and starts fast.
"""

from __future__ import annotations

import ast
import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import IO

_SAMPLE_SECONDS = 0.05
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024
"""What `ru_maxrss` counts in, in bytes."""


class CommandFailed(RuntimeError):
    """A measured command did not end as it should. The message is one sentence and what it said last."""


@dataclass(frozen=True, slots=True)
class Run:
    """One finished command.

    `seconds` is wall time, `processor` the seconds on processors of it and all its workers. Memory is
    resident, in bytes: `peak` is the largest that any of its processes ever had, as the kernel counted it;
    `main` and `worker` (the largest one) are sampled, and 0 where that cannot be done.
    """

    seconds: float
    processor: float = 0.0
    peak: int = 0
    main: int = 0
    worker: int = 0
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

    The last `keep` bytes of its output and of its messages come back. Raises CommandFailed where it cannot
    be started or ends with a code that `accept` lacks. An interrupt ends the command and its workers too.
    """
    words = [os.fspath(word) for word in command]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        start = perf_counter()
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env={**os.environ, **(environment or {})},
                cwd=folder,
                start_new_session=True,
            )
        except OSError as error:
            raise CommandFailed(f"{words[0]} could not be started ({error.strerror or error})") from error
        usage, peaks = _wait(process)
        seconds = perf_counter() - start
        said, complained = _tail(output, keep), _tail(errors, keep)
    if process.returncode not in accept:
        last = (complained or said).strip().splitlines()
        raise CommandFailed(f"`{' '.join(words)}` ended with {process.returncode}: {last[-1] if last else 'no words'}")
    return Run(
        seconds=seconds,
        processor=usage.ru_utime + usage.ru_stime,
        peak=usage.ru_maxrss * _RSS_UNIT,
        main=peaks.pop(process.pid, 0),
        worker=max(peaks.values(), default=0),
        output=said,
        errors=complained,
    )


def _wait(process: subprocess.Popen[bytes]) -> tuple[resource.struct_rusage, dict[int, int]]:
    """Wait for a process while its family's memory is sampled."""
    peaks: dict[int, int] = {}
    done = threading.Event()
    sampler = threading.Thread(target=_sample, args=(process.pid, peaks, done), daemon=True)
    sampler.start()
    try:
        # `wait4` and not `Popen.wait`: only it tells what this one command used, workers included.
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    finally:
        done.set()
        sampler.join()
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage, peaks


def _sample(root: int, peaks: dict[int, int], done: threading.Event) -> None:
    """Keep the high water mark of a process and of all below it until `done`."""
    while not done.wait(_SAMPLE_SECONDS):
        waiting = [root]
        while waiting:
            pid = waiting.pop()
            peaks[pid] = max(peaks.get(pid, 0), high_water(pid))
            waiting += children(pid)


def high_water(pid: int) -> int:
    """The most resident memory that a process has had, in bytes; 0 where that cannot be read."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    line = next((line for line in status.splitlines() if line.startswith("VmHWM:")), "")
    return int(line.split()[1]) * 1024 if line else 0


def children(pid: int) -> list[int]:
    """The processes that a process started and that are still there."""
    try:
        lists = [path.read_text(encoding="ascii") for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    return [int(child) for text in lists for child in text.split()]


def _tail(file: IO[bytes], keep: int) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - keep))
    return file.read().decode("utf-8", errors="replace")


def time_parsing(folder: Path, *, kept: bool, clock: Callable[[], float] = perf_counter) -> float:
    """The seconds that `ast.parse` takes over the files that `check` reads in a folder, one after the other.

    The texts are read before. Each tree is dropped at once, or with `kept` only after the last.
    """
    from ckpt_surgery.static.discover import discover, read_sources

    texts = [source.text for source in read_sources(discover([folder])[0])[0]]
    trees: list[ast.Module] = []
    start = clock()
    for text in texts:
        with contextlib.suppress(SyntaxError):
            tree = ast.parse(text)
            if kept:
                trees.append(tree)
            del tree
    return clock() - start
