"""Run a script with and without `fit` under a limit, and compare."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_RANKS = ("-m", "torch.distributed.run", "--nproc-per-node", "2")


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
    ran = subprocess.run(
        [sys.executable, *(_RANKS if ranks else ()), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "LIMIT": "" if limit is None else str(limit)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    return Ran(ran.returncode, ran.stdout)


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
