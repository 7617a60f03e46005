"""The guard's proof held against `verify`: its figures, and its page. `guard_survey` measures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from ckpt_surgery.measure.results import MODES
from ckpt_surgery.text import code, listed, markdown_table, plural, prose

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "coverage" / "guard.json"
"""Where the figures of the page are kept."""
PAGE = FIGURES.with_suffix(".md")
NOTICE = "<!-- Written by `python -m benchmarks.guard_survey`, and by `python -m docs.generate` from guard.json. -->"


class Comparison(StrEnum):
    """How the proof of the blocks agrees with the verdict on the whole model."""

    SAME = "same"
    BOTH_BROKEN = "broken in both, and the guard names some of the same parameters"
    ONLY_GUARD = "only the guard finds a fault"
    ONLY_VERIFY = "only verify finds a fault"
    NOT_VOUCHED = "only verify finds a fault, and some blocks could not be proved"
    NOT_PROVED = "no fault in either, and some blocks could not be proved"
    NOT_RUN = "the step or the model does not run"


MEANINGS = {
    Comparison.SAME: "no fault in either, and every block is proved",
    Comparison.NOT_PROVED: "no fault in either, and some blocks are not proved: the report says why",
    Comparison.BOTH_BROKEN: "a fault in both, and the guard names parameters that `verify` names",
    Comparison.NOT_VOUCHED: "`verify` finds a fault, and some blocks are not proved: the report says why",
    Comparison.ONLY_VERIFY: "`verify` finds a fault, and every block is proved",
    Comparison.ONLY_GUARD: "the guard calls a block wrong where `verify` finds no fault",
    Comparison.NOT_RUN: "the class claims no checkpointing, or the step with it raises: nothing to prove",
}
_OF_A_MODE = ("comparison", "statuses", "verify", "guard", "broken", "named", "missed")
DISAGREEMENTS = (Comparison.ONLY_GUARD, Comparison.ONLY_VERIFY)


@dataclass(frozen=True, slots=True)
class Row:
    """One class in one mode: how the blocks ended, by status, and parameters that each names.

    Of the `broken` parameters of `verify` the guard names so many; `missed` are some of the others.
    """

    model: str
    mode: str
    comparison: Comparison
    statuses: Mapping[str, int]
    verify: tuple[str, ...]
    guard: tuple[str, ...]
    broken: int
    named: int
    missed: tuple[str, ...]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """What `asdict` made `data` from."""
        tuples = {name: tuple(data[name]) for name in ("verify", "guard", "missed")}
        return cls(**{**data, **tuples, "comparison": Comparison(data["comparison"])})


@dataclass(frozen=True, slots=True)
class GuardFigures:
    """What was surveyed.

    Attributes:
        versions: of torch and transformers.
        classes: how many were examined.
        known: how many that transformers has.
        problems: how many of them could not be, by the kind of error.
        counts: how many classes ended so, by comparison and mode.
        rows: those in which either finds a fault.
        unproved: how many blocks were not proved where neither finds a fault, by the reason.
    """

    versions: Mapping[str, str]
    classes: int
    known: int
    problems: Mapping[str, int]
    counts: Mapping[str, Mapping[str, int]]
    rows: tuple[Row, ...]
    unproved: Mapping[str, int]


def figures_of(rows: Iterable[Mapping[str, Any]], versions: Mapping[str, str], known: int) -> GuardFigures:
    """The figures of what `guard_survey` wrote; of a class that was examined twice the later counts."""
    results = {row["class"]: row for row in rows}
    problems = Counter(row["problem"].split(":")[0] for row in results.values() if "problem" in row)
    counts: dict[str, dict[str, int]] = {kind: {str(mode): 0 for mode in MODES} for kind in Comparison}
    unproved: Counter[str] = Counter()
    kept = []
    for name, row in sorted(results.items()):
        for mode, data in row.get("modes", {}).items():
            comparison = Comparison(data["comparison"])
            counts[comparison][mode] += 1
            if comparison is Comparison.NOT_PROVED:
                unproved.update({status: n for status, n in data["statuses"].items() if status != "proved"})
            elif comparison in (*DISAGREEMENTS, Comparison.NOT_VOUCHED, Comparison.BOTH_BROKEN):
                kept.append(Row.of({field: data[field] for field in _OF_A_MODE} | {"model": name, "mode": mode}))
    return GuardFigures(versions, len(results), known, dict(problems), counts, tuple(kept), dict(unproved))


def read_guard(path: Path | None = None) -> GuardFigures:
    """The figures. Raises OSError, or KeyError or TypeError where they are not such."""
    data = json.loads((path or FIGURES).read_text(encoding="utf-8"))
    return GuardFigures(**{**data, "rows": tuple(Row.of(row) for row in data["rows"])})


def write_guard(figures: GuardFigures, path: Path | None = None) -> None:
    """Keep the figures."""
    (path or FIGURES).write_text(json.dumps(asdict(figures), indent=1) + "\n", encoding="utf-8")


def page(figures: GuardFigures) -> str:
    """The page in docs/coverage."""
    versions = listed([f"{name} {version}" for name, version in figures.versions.items()])
    counts = [
        [MEANINGS[kind], *(f"{figures.counts[kind][mode]:,}" for mode in MODES)]
        for kind in MEANINGS
        if any(figures.counts[kind].values())
    ]
    disagreeing = [row for row in figures.rows if row.comparison in DISAGREEMENTS]
    unvouched = [row for row in figures.rows if row.comparison is Comparison.NOT_VOUCHED]
    broken = [row for row in figures.rows if row.comparison is Comparison.BOTH_BROKEN]
    parts = [
        NOTICE,
        "# The guard's proof of single blocks",
        f"What `guard` says of tiny models with random weights, held against `verify` on the whole model "
        f"({versions}): {figures.classes:,} of {plural(figures.known, 'class', 'classes')}{_drawn(figures)}. "
        "`python -m benchmarks.guard_survey` measures it.",
        f"{plural(sum(figures.problems.values()), 'class has', 'classes have')} no comparison: no tiny model could be "
        "made, or its library refuses to switch checkpointing on.",
        markdown_table(["result", *MODES], counts),
        "## Not proved",
        "Blocks of healthy classes that the guard did not prove, by its reason:",
        markdown_table(["reason", "blocks"], [[prose(name), f"{n:,}"] for name, n in figures.unproved.items()]),
    ]
    if disagreeing:
        parts += [
            "## Where they disagree",
            "Where every block is proved, each has the right gradients for what reached it, and the fault is between "
            "them.",
            _table(disagreeing),
        ]
    if unvouched:
        parts += [
            "## Where the guard does not prove what `verify` calls wrong",
            "What the guard says of the blocks is the reason: a block that no gradient reaches, or that runs several "
            "times in a step, cannot be judged alone.",
            _table(unvouched),
        ]
    if broken:
        parts += [
            "## Where both find a fault",
            "The guard names the parameters of the block that loses gradient, and `verify` also those before it: they "
            "get wrong gradients through that block, and each block there is right for what reached it. A block alone "
            "cannot show more.",
            _both(broken),
        ]
    return "\n\n".join(parts) + "\n"


def _drawn(figures: GuardFigures) -> str:
    if figures.classes >= figures.known:
        return ""
    return ", a random sample and classes in which `verify` finds lost or wrong gradients"


def _both(rows: Iterable[Row]) -> str:
    body = [
        [
            code(row.model),
            row.mode,
            f"{row.named:,} of {row.broken:,}",
            listed([code(name) for name in row.guard[:2]]),
            listed([code(name) for name in row.missed[:2]]),
        ]
        for row in rows
    ]
    return markdown_table(["class", "mode", "named", "by the guard, such as", "only by `verify`, such as"], body)


def _table(rows: Iterable[Row]) -> str:
    body = []
    for row in rows:
        by_guard = row.comparison is Comparison.ONLY_GUARD
        statuses = ", ".join(f"{status}: {count}" for status, count in row.statuses.items())
        names = listed([code(name) for name in (row.guard if by_guard else row.verify)[:2]])
        body.append([code(row.model), row.mode, "guard" if by_guard else "verify", prose(statuses), names])
    return markdown_table(["class", "mode", "named by", "blocks in the guard", "parameters, such as"], body)
