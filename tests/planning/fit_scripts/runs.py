"""Run a script with and without `fit` under a limit, and compare."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from tests.warm_python import python_environment, run_python


@dataclass(frozen=True)
class Ran:
    code: int
    output: str

    @property
    def losses(self) -> list[float]:
        return [float(each) for each in json.loads(self._told)["losses"]]

    @property
    def peak(self) -> int:
        return int(json.loads(self._told)["peak"])

    @property
    def _told(self) -> str:
        return next(line for line in self.output.splitlines() if line.startswith('{"losses"'))


def python(folder: Path, *arguments: str, limit: int | None = None, ranks: bool = False) -> Ran:
    """Run Python with these arguments in a folder, under a limit in bytes, on two ranks if asked to."""
    environment = python_environment(LIMIT="" if limit is None else str(limit))
    ran = run_python(*arguments, cwd=folder, environment=environment, ranks=2 if ranks else 0)
    return Ran(ran.returncode, ran.stdout + ran.stderr)


def check_fit(folder: Path, script: str, limit: int, *, ranks: bool = False, off_by: float = 1e-3) -> None:
    """Assert that a script that fails under a limit trains the same with `fit`, near the predicted peak."""
    bare = python(folder, "-m", script, "out", ranks=ranks)
    assert bare.code == 0, bare.output
    failed = python(folder, "-m", script, "out", limit=limit, ranks=ranks)
    assert failed.code != 0
    assert "OutOfMemoryError" in failed.output
    options = ("--memory", f"{limit // 1000}KB", "--margin", "0", "--write", "plan.yaml")
    fitted = python(folder, "-m", "ckpt_surgery", "fit", *options, "-m", script, "out", limit=limit, ranks=ranks)
    assert fitted.code == 0, fitted.output
    pairs = zip(fitted.losses, bare.losses, strict=True)
    assert all(abs(ours - theirs) < 1e-4 * abs(theirs) for ours, theirs in pairs)
    match = re.search(r"peak_bytes: (\d+)", (folder / "plan.yaml").read_text(encoding="utf-8"))
    assert match is not None
    assert abs(int(match[1]) - fitted.peak) <= off_by * fitted.peak, (int(match[1]), fitted.peak)
