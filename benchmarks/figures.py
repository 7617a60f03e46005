"""The figures of a benchmark, their targets, and the verdicts printed at its end."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ckpt_surgery.measure.versions import installed_versions
from ckpt_surgery.text import text_table

ROOT = Path(__file__).resolve().parent.parent


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


def finish(measured: Sequence[Figure], text: str, out: Path) -> int:
    """Write `text`, the json, to `out`, and print the figures with their medians, targets and verdicts.

    Returns the exit code: 0; 1 if a target is missed.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    rows = [[each.name, f"{each.median:.4g}", each.unit, str(each.target or ""), each.verdict] for each in measured]
    print(*text_table(["figure", "median", "unit", "target", ""], rows, right="median"), sep="\n")
    print(f"Figures written to {out}")
    return 1 if any(figure.verdict == "missed" for figure in measured) else 0
