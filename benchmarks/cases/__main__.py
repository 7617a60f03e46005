"""Run each case through its doors, and print what differs from what is right.

    python -m benchmarks.cases [NAME ...] [--jobs N]

A case is a script in `scripts` that trains on the processor in seconds. Its `DOORS` says what is right: for each door
the exit code (0), texts that must be and must never be in the output, and whether the door `cures` the training; else
the steps that the script prints must be those of plain Python. `NEEDS` names what must be installed, `RANKS` how many
processes train together. Exit code 1 where something differs.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

SCRIPTS = Path(__file__).parent / "scripts"
ROOT = SCRIPTS.parents[2]
PATIENCE = 180
"""The seconds that one door may take."""
DOORS: Mapping[str, Sequence[str]] = {
    "plain": (),
    "run": ("-m", "ckpt_surgery", "run"),
    "watch": ("-m", "ckpt_surgery", "run", "--no-wrap"),
    "wrap": ("-m", "ckpt_surgery", "run", "--wrap"),
    "check": ("-m", "ckpt_surgery", "check", "--show-info"),
    "verify": ("-m", "ckpt_surgery", "verify"),
}
"""What stands between `python` and the script."""
TRAINS = DOORS.keys() - {"check", "verify"}
"""The doors through which the script trains."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "400", "PYTHONPATH": str(ROOT)}
NEVER = ("Traceback (most recent call last)", "internal error", "the guard failed")


@dataclass(frozen=True, slots=True)
class Case:
    """A script, and the right answer of each door."""

    script: Path
    doors: Mapping[str, Mapping[str, Any]]
    needs: Sequence[str] = ()
    ranks: int = 1

    @property
    def lacks(self) -> list[str]:
        """The requirements that are not installed."""
        return [need for need in self.needs if not _installed(Requirement(need))]


def read(script: Path) -> Case:
    """Read the literals at the head of a case's script. Raises KeyError where it has no `DOORS`."""
    values: dict[str, Any] = {"__builtins__": {}}
    for node in ast.parse(script.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).isupper():
            with contextlib.suppress(NameError):  # it needs what the script imports, and is none of ours
                exec(compile(ast.Module([node], []), str(script), "exec"), values)
    return Case(script, values["DOORS"], values.get("NEEDS", ()), values.get("RANKS", 1))


def _installed(requirement: Requirement) -> bool:
    try:
        return requirement.specifier.contains(importlib.metadata.version(requirement.name), prereleases=True)
    except importlib.metadata.PackageNotFoundError:
        return False


def differences(case: Case) -> list[str]:
    """Run a case through its doors, and return what is not right."""
    plain = _run(case, "plain")[1] if case.doors.keys() & TRAINS else ""
    lines = []
    for door, right in case.doors.items():
        code, output = _run(case, door)
        expected = right.get("exit", 0)
        never = [*right.get("never", ()), *(text for text in NEVER if text not in plain)]
        lines += [f"{door}: exit code {code}, not {expected}"] if code != expected else []
        lines += [f"{door}: does not say {text!r}" for text in right.get("says", ()) if text not in output]
        lines += [f"{door}: says {text!r}" for text in never if text in output]
        if door in TRAINS and not right.get("cures") and _steps(output) != _steps(plain):
            lines.append(f"{door}: other steps than plain Python's")
    return lines


def _steps(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("step ")]


def _run(case: Case, door: str) -> tuple[int, str]:
    """Return the exit code of a door, and what it wrote."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.ranks}"]
    script = f"{case.script}:make" if door == "verify" else str(case.script)
    command = [sys.executable, *(launcher if case.ranks > 1 else ()), *DOORS[door], script]
    environment = {**os.environ, **ENVIRONMENT}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return -1, f"took more than {PATIENCE} s"
    return done.returncode, done.stdout + done.stderr


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases that are named, or all. Return 1 where something is not right, 2 where there is no such case."""
    parser = argparse.ArgumentParser("cases", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="the cases to run (default: all)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="cases at once (default: 2)")
    options = parser.parse_args(arguments)
    found = {script.stem: script for script in sorted(SCRIPTS.glob("*.py"))}
    if unknown := [name for name in options.names if name not in found]:
        print(f"cases: no such case: {', '.join(unknown)}.", file=sys.stderr)
        return 2
    cases = [read(found[name]) for name in options.names or found]
    wrong = False
    with ThreadPoolExecutor(options.jobs) as pool:
        every = pool.map(lambda case: [] if case.lacks else differences(case), cases)
        for case, lines in zip(cases, every, strict=True):
            wrong = wrong or bool(lines)
            said = f"skipped: needs {', '.join(case.lacks)}" if case.lacks else "; ".join(lines) or "right"
            print(f"{case.script.stem} ({', '.join(case.doors)}): {said}", flush=True)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
