"""The figures of a benchmark, their targets, and the verdicts printed at its end."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Table

from ckpt_surgery.measure.versions import installed_versions

ROOT = Path(__file__).resolve().parent.parent
PLAIN_WIDTH = 120
"""Columns of the tables where there is no terminal."""


@dataclass(frozen=True, slots=True)
class Target:
    """The limit that a figure must not exceed or, if `at_least`, must reach."""

    limit: float
    at_least: bool = False

    def met_by(self, value: float) -> bool:
        """Tell whether a value is good enough."""
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'at least' if self.at_least else 'at most'} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured quantity: a value for each round, the unit, and the target if it has one."""

    name: str
    values: tuple[float, ...]
    unit: str
    target: Target | None = None

    @property
    def median(self) -> float:
        """The middle of the rounds."""
        return statistics.median(self.values)

    @property
    def verdict(self) -> str:
        """`ok`, `missed`, or an empty string without a target."""
        if self.target is None:
            return ""
        return "ok" if self.target.met_by(self.median) else "missed"


def plain_table(title: str, measured: Sequence[Figure]) -> Table:
    """Return the figures with their medians, targets and verdicts."""
    grid = Table(title=title, title_style="bold")
    grid.add_column("figure", no_wrap=True)
    grid.add_column("median", justify="right", no_wrap=True)
    for heading in ("unit", "target", ""):
        grid.add_column(heading, no_wrap=True)
    for figure in measured:
        median = f"{figure.median:,}" if isinstance(figure.median, int) else f"{figure.median:.4g}"
        style = "bold red" if figure.verdict == "missed" else ""
        grid.add_row(figure.name, median, figure.unit, str(figure.target or ""), figure.verdict, style=style)
    return grid


def document(measured: Sequence[Figure], **more: object) -> str:
    """Return the figures with all their values as json, with the installed versions and `more` settings of the run."""
    figures = {
        figure.name: {
            "values": figure.values,
            "unit": figure.unit,
            "target": str(figure.target or ""),
            "verdict": figure.verdict,
        }
        for figure in measured
    }
    versions = {**installed_versions(), "python": platform.python_version()}
    content = {"versions": versions, "processors": os.cpu_count(), **more}
    return json.dumps({**content, "figures": figures}, indent=2) + "\n"


def machine() -> str:
    """Return the machine of a run without an accelerator."""
    return f"{platform.machine()}, {os.cpu_count()} processors"


def console_of(plain_width: int) -> Console:
    """Return the standard output, `plain_width` columns wide where it is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=plain_width)


def lacking(program: str, *packages: str) -> bool:
    """Tell whether a package is missing, and print its name if so."""
    missing = next((name for name in packages if find_spec(name) is None), "")
    if missing:
        print(f"{program}: No module named '{missing}'.", file=sys.stderr)
    return bool(missing)


def option_parser(program: str, doc: str | None) -> argparse.ArgumentParser:
    """Make a parser described by the first line of the module's docstring, with the option `--out`."""
    parser = argparse.ArgumentParser(prog=program, description=(doc or "").partition("\n")[0])
    name = f"{program}.json"
    parser.add_argument(
        "--out", type=Path, default=ROOT / "out" / name, help=f"the json to write (default: out/{name})"
    )
    return parser


def gpu_parser(program: str, doc: str | None) -> argparse.ArgumentParser:
    """Make the parser of a benchmark that runs on a GPU, or with `--toy` on the processor."""
    parser = option_parser(program, doc)
    parser.add_argument("--toy", action="store_true", help="toy sizes, and the processor in place of a GPU")
    return parser


def rounds_option(text: str) -> int:
    """Return the value of an option that counts rounds. Raises ArgumentTypeError unless it is 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of rounds: give 1 or more")
    return int(text)


def finish(
    program: str,
    measured: Sequence[Figure],
    text: str,
    out: Path,
    shown: Sequence[RenderableType],
    width: int = PLAIN_WIDTH,
) -> int:
    """Write `text`, the json, to `out` and print what is `shown`, `width` columns wide without a terminal.

    Returns the exit code: 0; 1 if a target is missed; 2 if the json cannot be written.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"{program}: {error.filename or out}: {error.strerror or error}.", file=sys.stderr)
        return 2
    console = console_of(width)
    for part in shown:
        console.print(part, soft_wrap=isinstance(part, str), highlight=False)
    console.print(f"Figures written to {out}", soft_wrap=True, highlight=False)
    return 1 if any(figure.verdict == "missed" for figure in measured) else 0
