"""What a benchmark measured, what it should have measured, and how it says so in the end."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table

from benchmarks.screen import console_of
from ckpt_surgery.measure.versions import installed_versions


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure has to be: at most the limit, or at least."""

    limit: float
    at_least: bool = False

    def met_by(self, value: float) -> bool:
        """Whether a value is good enough."""
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'at least' if self.at_least else 'at most'} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity: a value for each round, its unit, and its target where it has one."""

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
        """ok, missed, or nothing where there is no target."""
        if self.target is None:
            return ""
        return "ok" if self.target.met_by(self.median) else "missed"


def plain_table(title: str, measured: Sequence[Figure]) -> Table:
    """The figures, each with its target and whether it is met."""
    grid = Table(title=title, title_style="bold")
    grid.add_column("figure", no_wrap=True)
    grid.add_column("median", justify="right", no_wrap=True)
    for heading in ("unit", "target", ""):
        grid.add_column(heading, no_wrap=True)
    for figure in measured:
        grid.add_row(figure.name, f"{figure.median:.4g}", figure.unit, str(figure.target or ""), figure.verdict)
    return grid


def document(measured: Sequence[Figure], **more: object) -> str:
    """The json of the figures with all their values, of versions, and of `more` that they were measured with."""
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
    """What a benchmark ran on, without an accelerator."""
    return f"{platform.machine()}, {os.cpu_count()} processors"


def lacking(program: str, *packages: str) -> bool:
    """Whether a package is not installed; then it is named."""
    missing = next((name for name in packages if find_spec(name) is None), "")
    if missing:
        print(f"{program}: No module named '{missing}'.", file=sys.stderr)
    return bool(missing)


def finish(
    program: str, measured: Sequence[Figure], text: str, out: Path, shown: Sequence[RenderableType], width: int
) -> int:
    """Write `text`, the json, into `out`, and print what is to be `shown`, `width` columns wide without a terminal.

    Returns the exit code: 0; 1 where a target is missed; 2 where the json cannot be written.
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
    console.print(f"The json lies in {out}", soft_wrap=True, highlight=False)
    return 1 if any(figure.verdict == "missed" for figure in measured) else 0
