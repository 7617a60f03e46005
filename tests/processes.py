"""Run a script that forks ranks in a separate session, and kill whatever is left of it afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run_ranks(script: str, folder: Path, patience: float, **environment: str) -> str:
    """Run `script`, a module that takes the prefix of its result files as argument, and return that prefix.

    Raises AssertionError with the script's output if it fails, TimeoutExpired if it takes over `patience` seconds.
    """
    prefix = str(folder / "result")
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **environment}
    with (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", script, prefix],
            cwd=ROOT,
            env=variables,
            stdout=errors,
            stderr=errors,
            start_new_session=True,
        )
        try:
            code = process.wait(patience)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert code == 0, (folder / "errors").read_text(encoding="utf-8")
    return prefix
