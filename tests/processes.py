"""Run a script that forks ranks in a separate session, and kill whatever is left of it afterwards."""

from __future__ import annotations

from pathlib import Path

from tests.warm_python import ROOT, python_environment, run_python


def run_ranks(script: str, folder: Path, patience: float, **environment: str) -> str:
    """Run `script`, a module that takes the prefix of its result files as argument, and return that prefix.

    Raises AssertionError with the script's output if it fails, TimeoutExpired if it takes over `patience` seconds.
    """
    prefix = str(folder / "result")
    variables = python_environment(**environment)
    done = run_python("-m", script, prefix, cwd=ROOT, environment=variables, timeout=patience)
    assert done.returncode == 0, done.stdout + done.stderr
    return prefix
