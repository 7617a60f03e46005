"""The demo: repair a copy of a released transformers and show, family by family, what changed.

Writes `VERSION/` (the repaired copy), `VERSION.diff` and `VERSION.json` below out/demo. Needs no torch.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.releases import SHA256, ReleaseError, fetch
from benchmarks.screen import console_of
from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.static.results import ApplyResult, FileChange, Progress

Apply = Callable[..., ApplyResult]
FAULTS = (Applicability.SAFE, Applicability.UNSAFE)
PLAIN_WIDTH = 140


@dataclass(frozen=True, slots=True)
class Row:
    """One family, or all of them: findings by rule before and after, and how many files changed."""

    family: str
    before: Counter[str]
    after: Counter[str]
    files: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo. Return 0; 1 where a file was left out or the diff does not apply; 2 where it could not run."""
    from ckpt_surgery import apply

    parser = argparse.ArgumentParser(prog="demo", description="Repair a copy of a released transformers.")
    parser.add_argument("--version", default="4.57.6", choices=SHA256, help="the release (default: 4.57.6)")
    parser.add_argument("--unsafe", action="store_true", help="also apply what may break callers elsewhere")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "demo", help="where to write (default: out/demo)")
    options = parser.parse_args(arguments)
    console = console_of(PLAIN_WIDTH)
    try:
        return run(options.version, options.out, apply, console, unsafe=options.unsafe)
    except ReleaseError as error:
        print(f"demo: {error}.", file=sys.stderr)
        return 2
    except OSError as error:
        print(
            f"demo: {error.filename or options.out} could not be written ({error.strerror or error}).", file=sys.stderr
        )
        return 2


def run(version: str, out: Path, apply: Apply, console: Console, *, unsafe: bool) -> int:
    """Repair a copy of `version` with `apply` and report on `console`; the exit code is the value."""
    pristine = fetch(version).parent.parent
    tree = (out / version).resolve()
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(pristine, tree, ignore=shutil.ignore_patterns(".unpacked", "__pycache__"))
    with progress_bar() as progress:
        result = apply([tree / "src" / "transformers" / "models"], unsafe=unsafe, progress=progress)
    changes = [replace(change, path=inner_path(change, tree)) for change in result.changes]
    patch = out / f"{version}.diff"
    patch.write_text("".join(change.diff for change in changes), encoding="utf-8", newline="")
    rows = family_rows(changes, result)
    everything = Row("all families", tally(result.findings), tally(result.left), len(changes))
    fault = patch_fault(patch, pristine) if changes else ""
    (out / f"{version}.json").write_text(summary(version, result, rows, everything), encoding="utf-8")
    console.print(table(version, rows, everything))
    for line in closing_lines(result, everything, patch, fault):
        console.print(Text(line), soft_wrap=True)
    return 1 if fault or result.problems else 0


def inner_path(change: FileChange, tree: Path) -> str:
    """The path of a changed file as git writes it, from the top of the release."""
    return Path(change.path).resolve().relative_to(tree).as_posix()


def tally(findings: Sequence[Finding], family: str | None = None) -> Counter[str]:
    """How many faults (safe and unsafe findings) each rule has, in one family or in all."""
    faults = (finding for finding in findings if finding.applicability in FAULTS)
    return Counter(fault.code for fault in faults if family is None or fault.family == family)


def family_rows(changes: Sequence[FileChange], result: ApplyResult) -> list[Row]:
    """One row for every family in which a file changed, in order of name."""
    files = Counter(Path(change.path).parent.name for change in changes)
    return [
        Row(family, tally(result.findings, family), tally(result.left, family), files[family])
        for family in sorted(files)
    ]


def table(version: str, rows: Sequence[Row], everything: Row) -> Table:
    """The rows as a table with one column for every rule that found something in them."""
    codes = sorted({code for row in (*rows, everything) for code in row.before | row.after})
    grid = Table(title=f"transformers {version}: faults by rule, before -> after", title_style="bold")
    grid.add_column("family", no_wrap=True)
    for code in codes:
        grid.add_column(code, justify="right", no_wrap=True)
    grid.add_column("files changed", justify="right")
    for row in rows:
        grid.add_row(*cells(row, codes))
    grid.add_section()
    grid.add_row(*cells(everything, codes), style="bold")
    return grid


def cells(row: Row, codes: Sequence[str]) -> list[str]:
    """The texts of one row; a rule that found nothing there stays blank."""
    counts = [(row.before[code], row.after[code]) for code in codes]
    return [row.family, *(f"{b} -> {a}" if b or a else "" for b, a in counts), str(row.files)]


def closing_lines(result: ApplyResult, everything: Row, patch: Path, fault: str) -> list[str]:
    """What stands below the table: what could not be dealt with, the totals, and where the diff lies."""
    lines = [f"problem: {problem}" for problem in result.problems] + [f"note: {note}" for note in result.notes]
    before, after = everything.before.total(), everything.after.total()
    lines.append(
        f"{before} faults before, {after} after; {everything.files} of {result.files} files changed "
        f"in {result.seconds:.1f} s. The table shows the families with a changed file."
    )
    if after:
        lines.append(
            "What is left needs --unsafe, since callers elsewhere may break, or a person. "
            "A count that rises is what a repair brought to light."
        )
    lines.append(f"What a rule is about: {os.path.relpath(sys.executable)} -m ckpt_surgery rule CKPT001")
    if fault:
        lines.append(f"The diff {patch} does NOT apply to the release: {fault}")
    elif everything.files:
        lines.append(f"The diff lies in {patch}; `git apply --check` accepts it on the untouched release.")
    else:
        lines.append("Nothing changed.")
    return lines


def summary(version: str, result: ApplyResult, rows: Sequence[Row], everything: Row) -> str:
    """The same figures as json."""
    figures = {
        "version": version,
        "files": result.files,
        "seconds": round(result.seconds, 3),
        "problems": [str(problem) for problem in result.problems],
        "notes": [str(note) for note in result.notes],
        "total": as_json(everything),
        "families": {row.family: as_json(row) for row in rows},
    }
    return json.dumps(figures, indent=2) + "\n"


def as_json(row: Row) -> dict[str, object]:
    """One row without its name."""
    return {
        "before": dict(sorted(row.before.items())),
        "after": dict(sorted(row.after.items())),
        "files_changed": row.files,
    }


def patch_fault(patch: Path, tree: Path) -> str:
    """Why git would not apply `patch` at the top of `tree`; empty where it would."""
    # Inside a repository git reads a patch from that repository's top and skips what lies elsewhere.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment["GIT_CEILING_DIRECTORIES"] = str(tree.resolve().parent)
    command = ["git", "apply", "--check", str(patch.resolve())]
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "git is not installed, so that nobody checked it"
    lines = [line for line in done.stderr.splitlines() if line.startswith(("error:", "fatal:"))]
    return (lines or [f"git ended with {done.returncode}"])[0] if done.returncode else ""


def progress_bar() -> AbstractContextManager[Progress | None]:
    """A progress bar on stderr where that is a terminal."""
    console = Console(stderr=True)
    return StepBar(console) if console.is_terminal else nullcontext()


class StepBar:
    """One line per step of the work, used as `with StepBar(console) as progress`."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Bar(*columns, console=console, transient=True)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def __call__(self, step: str, done: int, total: int) -> None:
        """Show that `done` of `total` files are through the step named `step`."""
        if step not in self._tasks:
            self._tasks[step] = self._bar.add_task(step, total=total)
        self._bar.update(self._tasks[step], completed=done, total=total)


if __name__ == "__main__":
    sys.exit(main())
