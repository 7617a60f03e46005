"""Start processes for tests: scripts that fork ranks, killed whole afterwards, and fork servers beside models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

from ckpt_surgery.survey.worker_pool import WorkerPool
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


@contextmanager
def pool_beside(module: str, source: str, folder: Path) -> Iterator[WorkerPool]:
    """Write a module of models in `folder`, and start a fork server that finds it there: its imports take seconds."""
    (folder / f"{module}.py").write_text(source, encoding="utf-8")
    with chdir(folder), WorkerPool() as pool:
        yield pool
