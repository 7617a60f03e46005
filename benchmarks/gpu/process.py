"""The process of one part: it is stopped after its time, and with the run that started it, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarks.gpu.parts import Part
from benchmarks.progress import read_json
from ckpt_surgery.text import one_line

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": str(ROOT),
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    "TOKENIZERS_PARALLELISM": "false",
}
"""What every part has in its environment. Segments that expand leave no gaps where a long sequence finds no room."""
_NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
_WELL = (0, 1)
"""The codes of a benchmark that came to its end: all targets met, or one missed. Python's for an error is 1, too."""
_SET_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux's prctl: the signal that a process gets when the one that started it ends."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended: its `problem` if it has one, its seconds, and whether it was stopped for its time."""

    seconds: float
    problem: str = ""
    stopped: bool = False


def run_part(part: Part, file: Path, *, dry: bool, seconds: float) -> Ended:
    """Run a part for so many seconds at most. What it says on stderr is shown as it comes."""
    start = time.monotonic()
    process = subprocess.Popen(
        part.command(file, dry=dry),
        cwd=ROOT,
        env={**os.environ, **SETTINGS, **(_NO_GPU if dry else {})},
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=_end_with_parent if sys.platform == "linux" else None,  # this process has one thread
    )
    assert process.stderr is not None
    last: list[str] = []
    show = threading.Thread(target=_show, args=(process.stderr, last), daemon=True)
    show.start()
    try:
        code = process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return Ended(time.monotonic() - start, f"it was stopped after {seconds:.0f} s", stopped=True)
    finally:
        _kill(process)  # also what it has started, and where this run is interrupted
        show.join(timeout=10)
    ended = time.monotonic() - start
    content = read_json(file)
    if code in _WELL and content and content.get("finished", True):
        return Ended(ended)
    said = f": {one_line(last[0])}" if last else ""
    how = f"it was killed by signal {-code}" if code < 0 else f"the command ended with {code}"
    return Ended(ended, how + said)


def _show(messages: IO[str], last: list[str]) -> None:
    """Show the messages of a process, and keep the last that says something."""
    for line in messages:
        sys.stderr.write(line)
        sys.stderr.flush()
        if line.strip():
            last[:] = [line.strip()]


def _kill(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError, PermissionError):  # it has ended, and all that it started
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
