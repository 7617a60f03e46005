"""Run each case through its doors, and print what differs from what is right.

    python -m benchmarks.cases [NAME ...] [--scripts FOLDER] [--jobs N]

A case is a script in `scripts` that trains on the processor in seconds. Its `DOORS` says what is right: for each door
the exit code (0), texts that must be and must never be in the output, and whether the door `cures` the training; else
the steps that the script prints must be those of plain Python. `NEEDS` names what must be installed, `RANKS` how many
processes train together. Exit code 1 where something differs.
"""

from __future__ import annotations

import argparse
import ast
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from rich.progress import Progress
from rich.table import Table

from benchmarks.figures import PLAIN_WIDTH, console_of

SCRIPTS = Path(__file__).parent / "scripts"
ROOT = SCRIPTS.parents[2]
PATIENCE = 180
"""The seconds that one door may take."""
ARGUMENTS: Mapping[str, Callable[[str], Sequence[str]]] = {
    "plain": lambda script: [script],
    "run": lambda script: ["-m", "ckpt_surgery", "run", script],
    "watch": lambda script: ["-m", "ckpt_surgery", "run", "--no-wrap", script],
    "wrap": lambda script: ["-m", "ckpt_surgery", "run", "--wrap", script],
    "check": lambda script: ["-m", "ckpt_surgery", "check", "--show-info", script],
    "verify": lambda script: ["-m", "ckpt_surgery", "verify", f"{script}:make"],
}
"""What follows `python` for a door. All but `check` and `verify` train."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "400"}
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


@dataclass(frozen=True, slots=True)
class Result:
    """A door's wrong answer; empty if all is right."""

    case: Case
    differences: Mapping[str, list[str]] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        """Whether every door did what it should, or the case was skipped."""
        return not any(self.differences.values())


def read(script: Path) -> Case:
    """Read the literals at the head of a case's script.

    Raises:
        KeyError: It has no `DOORS`.
    """
    values: dict[str, Any] = {}
    for node in ast.parse(script.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
            values[node.targets[0].id] = _literal(node.value, values)
    return Case(script, values["DOORS"], values.get("NEEDS", ()), values.get("RANKS", 1))


def _literal(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """Return the value of a literal, in which names of earlier ones may stand; None for anything else."""
    if isinstance(node, ast.Dict):
        return {
            _literal(key, known): _literal(value, known)
            for key, value in zip(node.keys, node.values, strict=True)
            if key
        }
    if isinstance(node, ast.Name):
        return known.get(node.id)
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _installed(requirement: Requirement) -> bool:
    try:
        return requirement.specifier.contains(importlib.metadata.version(requirement.name), prereleases=True)
    except importlib.metadata.PackageNotFoundError:
        return False


def judge(case: Case) -> Result:
    """Run a case through its doors."""
    if case.lacks:
        return Result(case)
    trains = [door for door in case.doors if door not in ("check", "verify")]
    plain = _run(case, "plain")[1] if trains else ""
    return Result(case, {door: _differences(case, door, right, plain) for door, right in case.doors.items()})


def _differences(case: Case, door: str, right: Mapping[str, Any], plain: str) -> list[str]:
    """Return what one door gave that is not right."""
    code, output = _run(case, door)
    expected = right.get("exit", 0)
    lines = [] if code == expected else [f"exit code {code}, not {expected}"]
    lines += [f"does not say {text!r}" for text in right.get("says", ()) if text not in output]
    never = [*right.get("never", ()), *(text for text in NEVER if text not in plain)]
    lines += [f"says {text!r}" for text in never if text in output]
    if door not in ("check", "verify") and not right.get("cures") and _steps(output) != _steps(plain):
        lines.append("other steps than plain Python's")
    return lines


def _steps(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("step ")]


def _run(case: Case, door: str) -> tuple[int, str]:
    """Return the exit code of a door, and what it wrote."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.ranks}"]
    command = [sys.executable, *(launcher if case.ranks > 1 else ()), *ARGUMENTS[door](str(case.script))]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return -1, f"took more than {PATIENCE} s"
    return done.returncode, done.stdout + done.stderr


def table(results: Sequence[Result]) -> Table:
    """Make a row for each case: what it does through each door."""
    grid = Table(title="trainings that went wrong for somebody", title_style="bold")
    for heading in ("case", "doors", "as it should be"):
        grid.add_column(heading)
    for result in results:
        wrong = [f"{door}: {line}" for door, lines in result.differences.items() for line in lines]
        verdict = f"skipped: needs {', '.join(result.case.lacks)}" if result.case.lacks else "\n".join(wrong) or "yes"
        grid.add_row(result.case.script.stem, ", ".join(result.case.doors), verdict, style="bold red" if wrong else "")
    return grid


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases that are named, or all. Return 1 where something is not right, 2 where there is no such case."""
    parser = argparse.ArgumentParser("cases", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="the cases to run (default: all)")
    parser.add_argument("--scripts", type=Path, default=SCRIPTS, metavar="FOLDER", help="where the cases lie")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="cases at once (default: 2)")
    options = parser.parse_args(arguments)
    found = {script.stem: script for script in sorted(options.scripts.glob("*.py"))}
    if unknown := [name for name in options.names if name not in found]:
        print(f"cases: no such case: {', '.join(unknown)}.", file=sys.stderr)
        return 2
    cases = [read(found[name]) for name in options.names or found]
    with Progress(transient=True) as bar, ThreadPoolExecutor(options.jobs) as pool:
        results = list(bar.track(pool.map(judge, cases), total=len(cases), description="cases"))
    console_of(PLAIN_WIDTH).print(table(results))
    return 0 if all(result.right for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
