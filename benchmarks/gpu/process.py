"""The process of one part: it is stopped after its time, and with the run that started it, however that ends.

Parts are forked from one process that has imported torch and transformers and asks nothing of the GPU.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import IO

from benchmarks.figures import ROOT
from benchmarks.gpu.parts import Part
from benchmarks.progress import read_json
from ckpt_surgery.text import one_line

SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": str(ROOT),
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""What every part has in its environment. Segments that expand leave no gaps where a long sequence finds no room.

NVML tells whether there is a GPU without taking it: a process that was forked from one that had cannot use it.
"""
_NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
_WELL = (0, 1)
"""The codes of a benchmark that came to its end: all targets met, or one missed. Python's for an error is 1, too."""
_SET_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux's prctl: the signal that a process gets when the one that started it ends."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a process: its `problem`, if any, its seconds, and whether it was stopped for its time."""

    seconds: float
    problem: str = ""
    stopped: bool = False


def import_once() -> None:
    """Import what nearly all parts need, with the settings that these packages read as they are imported."""
    os.environ.update(SETTINGS)
    import torch  # noqa: F401
    from transformers import LlamaForCausalLM  # noqa: F401


def run_part(part: Part, file: Path, *, dry: bool, seconds: float) -> Ended:
    """Run a part for so many seconds at most, the imports of the first one included.

    What it says on stderr is shown as it comes.
    """
    start = time.monotonic()
    import_once()
    reading, writing = os.pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_run, args=(part.command(file, dry=dry), writing, SETTINGS | (_NO_GPU if dry else {}))
    )
    process.start()
    os.close(writing)
    last: list[str] = []
    messages = open(reading, encoding="utf-8", errors="replace")  # noqa: SIM115
    show = threading.Thread(target=_show, args=(messages, last), daemon=True)
    show.start()
    try:
        process.join(seconds - (time.monotonic() - start))
        code = process.exitcode
    finally:
        _kill(process)  # also what it has started, and where this run is interrupted
        show.join(timeout=10)
    ended = time.monotonic() - start
    if code is None:
        return Ended(ended, f"it was stopped after {seconds:.0f} s", stopped=True)
    content = read_json(file)
    if code in _WELL and content and content.get("finished", True):
        return Ended(ended)
    said = f": {one_line(last[0])}" if last else ""
    how = f"it was killed by signal {-code}" if code < 0 else f"the command ended with {code}"
    return Ended(ended, how + said)


def _run(command: Sequence[str], stderr: int, settings: dict[str, str]) -> None:
    """Do in this process, a child, what the command would do in one of its own."""
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    os.dup2(stderr, 2)
    os.close(stderr)
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
    os.chdir(ROOT)
    os.environ.update(settings)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda._is_in_bad_fork():  # an import took the GPU after all
        os.execv(command[0], list(command))
    is_module = command[1] == "-m"
    sys.argv = list(command[2 if is_module else 1 :])
    if is_module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


def _show(messages: IO[str], last: list[str]) -> None:
    """Show the messages of a process, and keep the last that says something."""
    for line in messages:
        sys.stderr.write(line)
        sys.stderr.flush()
        if line.strip():
            last[:] = [line.strip()]


def _kill(process: ForkProcess) -> None:
    assert process.pid is not None
    process.kill()
    with suppress(ProcessLookupError, PermissionError):  # it has ended, and all that it started
        os.killpg(process.pid, signal.SIGKILL)
    process.join()
