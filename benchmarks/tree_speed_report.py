"""What the speed benchmark makes of its runs: figures, their targets, the table and the json."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.table import Table

from benchmarks.figures import Figure, Target
from benchmarks.stopwatch import Run
from benchmarks.tree_speed_runs import REPAIRED, RULE

Samples = Mapping[str, Sequence[Run]]
MEGABYTE = 10**6


TIMES = {"check, warm": Target(1.0), "--help": Target(0.3)}
"""The wall times that have a target, in seconds."""
RELEASE, TREE = Target(2.0), Target(1.3)
"""How often `ast.parse` of the same files `check` may take: of a release, and of other people's code."""
RATIOS = (
    ("check, cold", "ast.parse", RELEASE),
    ("mlinter, cold", "check, cold", Target(8.0, at_least=True)),
    ("mlinter, warm", "check, cold", None),
    ("mlinter, warm", "check, warm", Target(8.0, at_least=True)),
    (f"mlinter {RULE} alone", "check, cold", Target(1.0, at_least=True)),
    ("libcst codemod", "apply", Target(6.0, at_least=True)),
)
"""One command's wall time by another's."""
WEIGHED = ("check, cold", "apply")
"""The commands whose memory counts."""
MEMORY = Target(600.0)
"""In megabytes of 10**6 bytes, for each process."""


def figures(samples: Samples, parsing: Target = RELEASE) -> list[Figure]:
    """Times, ratios and memory of what ran. A ratio is taken within each round: other load hits both alike.

    `parsing` is the target beside `ast.parse`.
    """
    measured = [
        Figure(name, tuple(run.seconds for run in runs), "s", TIMES.get(name)) for name, runs in samples.items()
    ]
    for over, under, target in RATIOS:
        if over in samples and under in samples:
            pairs = zip(samples[over], samples[under], strict=True)
            values = tuple(one.seconds / other.seconds for one, other in pairs)
            measured.append(Figure(f"{over} / {under}", values, "x", parsing if target is RELEASE else target))
    for name in WEIGHED:
        if name in samples:
            measured += _memory(name, samples[name])
    return measured


def _memory(name: str, runs: Sequence[Run]) -> list[Figure]:
    """The largest process as the kernel counted it; main process and largest worker where they could be sampled."""
    kinds = {
        "largest process": [run.peak for run in runs],
        "main process": [run.main for run in runs],
        "largest worker": [run.worker for run in runs],
    }
    return [
        Figure(f"{name}: {kind}", tuple(value / MEGABYTE for value in values), "MB", MEMORY)
        for kind, values in kinds.items()
        if all(values)
    ]


def table(measured: Sequence[Figure], rounds: int, checked: str) -> Table:
    """The figures with their targets."""
    title = f"check on {checked}, apply on {REPAIRED}: medians of {rounds} rounds"
    grid = Table(title=title, title_style="bold")
    grid.add_column("figure", no_wrap=True)
    for name in ("median", "lowest", "highest"):
        grid.add_column(name, justify="right", no_wrap=True)
    grid.add_column("target", no_wrap=True)
    grid.add_column("", no_wrap=True)
    unit = ""
    for figure in measured:
        if unit and figure.unit != unit:
            grid.add_section()
        unit = figure.unit
        numbers = (f"{value:.{_places(value)}f}" for value in (figure.median, min(figure.values), max(figure.values)))
        median, lowest, highest = numbers
        target = f"{figure.target} {unit}" if figure.target else ""
        style = "bold red" if figure.verdict == "missed" else ""
        grid.add_row(figure.name, f"{median} {unit}", lowest, highest, target, figure.verdict, style=style)
    return grid


def _places(value: float) -> int:
    return 0 if value >= 100 else 1 if value >= 10 else 2


def as_json(measured: Sequence[Figure], samples: Samples, rounds: int, checked: str) -> str:
    """The same figures, every run that they are made of, and the machine."""
    content = {
        "checked": checked,
        "repaired": REPAIRED,
        "rounds": rounds,
        "machine": {"python": platform.python_version(), "system": platform.platform(), "cores": os.cpu_count()},
        "missed": [figure.name for figure in measured if figure.verdict == "missed"],
        "figures": [
            {
                "name": figure.name,
                "median": figure.median,
                "values": figure.values,
                "unit": figure.unit,
                "target": str(figure.target) if figure.target else None,
                "verdict": figure.verdict or None,
            }
            for figure in measured
        ],
        "runs": {
            name: [
                {key: value for key, value in asdict(run).items() if key not in ("output", "errors")} for run in runs
            ]
            for name, runs in samples.items()
        },
    }
    return json.dumps(content, indent=1) + "\n"
