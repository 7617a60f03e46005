"""`long_context` on every causal and conditional class: its figures, and its page. `long_context` measures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Any

from benchmarks.survey import Page
from ckpt_surgery.text import code, listed, markdown_table, plural, prose, titled

CLOSE = 1e-12
FARTHER = 1.1
"""How much farther from float32 the gradients of a step in bfloat16 may be than those of the model's own step."""


class Problem(StrEnum):
    """Why a class was not compared."""

    NOT_BUILT = "no tiny model of it could be made"
    NO_LOSS = "it computes no loss from its tiny inputs"
    OWN_STEP = "its own step does not run in float64"
    REFUSED = "`long_context` refuses it"
    RAISED = "the step after `long_context` raised"
    ENDED = "its process ended, or took too long"


class Way(StrEnum):
    """The way in which a compared class computed its loss."""

    FUSED = "the loss was computed without logits"
    MADE = "logits were made for a part of the loss, or for all of it"
    ALONE = "the head, or the loss, was left alone"


@dataclass(frozen=True, slots=True)
class Row:
    """One class. `far` is the largest relative difference in the loss, the gradients, and the gradients after `undo`.

    `half` and `own_half` say how far the gradients in bfloat16 are from those in float32, relative to the norm of
    those, after `long_context` and without it: 0 where there is no such step.

    `cut` counts the blocks cut at their attention; `not_cut` says why others were not, with their classes. With a
    `problem` it was not compared. `why` says of it what was said, and of a way other than `FUSED` the reason.
    """

    name: str
    problem: str | None
    way: str | None
    far: float
    why: str
    tiled: int = 0
    peak: int = 0
    own_peak: int = 0
    cut: int = 0
    not_cut: str = ""
    half: float = 0.0
    own_half: float = 0.0

    @property
    def farther(self) -> bool:
        """Whether it rounds worse in bfloat16 than the model's own step."""
        return not self.half <= FARTHER * self.own_half

    @property
    def differs(self) -> bool:
        """Whether the step was another."""
        return self.problem is None and not self.far < CLOSE


def row_of(data: Mapping[str, Any]) -> Row:
    """Parse one line that `long_context` wrote."""
    if "loss" not in data:
        problem = Problem(data["kind"]) if "kind" in data else Problem.ENDED
        return Row(data["class"], problem, None, 0.0, str(data["problem"]))
    levels = [float(data[level]) for level in ("loss", "gradients", "undone")]
    far = next((level for level in levels if level != level), max(levels))
    sizes = {name: data[name] for name in ("tiled", "peak", "own_peak", "cut")}
    sizes |= {name: data.get(name, 0.0) for name in ("half", "own_half")}
    sizes["not_cut"] = "; ".join(f"{name}: {reason}" for name, reason in sorted(data["not_cut"].items()))
    if data["made"]:
        return Row(data["class"], None, Way.MADE, far, f"for {', '.join(data['made'])}", **sizes)
    if data["fused"]:
        return Row(data["class"], None, Way.FUSED, far, "", **sizes)
    reasons = sorted({str(reason) for reason in data["heads"].values() if reason})
    return Row(data["class"], None, Way.ALONE, far, ", ".join(reasons) or "its loss is no cross-entropy", **sizes)


def rows_of(data: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return the rows of what `long_context` wrote, by class; of one that was examined twice the later counts."""
    rows = {each["class"]: row_of(each) for each in data}
    return [rows[name] for name in sorted(rows)]


def peak_ratio(rows: Iterable[Row]) -> float | None:
    """Return the most bytes alive without `long_context` over those with it, in the median of fused classes."""
    ratios = sorted(row.own_peak / row.peak for row in rows if row.way == Way.FUSED and row.peak)
    return ratios[len(ratios) // 2] if ratios else None


def sections(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sections of the page."""
    rows = [Row(**row) for row in figures["rows"]]
    versions = listed([f"{name} {version}" for name, version in figures["versions"].items()])
    compared = [row for row in rows if row.problem is None]
    differing = [row for row in compared if row.differs]
    largest = max((row.far for row in compared if not row.differs), default=0.0)
    tiled = sum(row.tiled > 0 for row in compared)
    whole = sum(row.cut > 0 and not row.not_cut for row in compared)
    partly = sum(row.cut > 0 and bool(row.not_cut) for row in compared)
    halves = [row for row in compared if 0 < row.own_half < inf]
    ratios = sorted(row.half / row.own_half for row in halves)
    yield "# long_context by class"
    yield (
        f"A training step after `long_context` held against the step of the model's own code, in float64, for tiny "
        f"models with random weights ({versions}): {len(rows)} of {figures['classes']} classes for causal and "
        "conditional generation. `python -m benchmarks.long_context` measures it, and goes on where it stopped."
    )
    yield (
        f"{plural(len(compared), 'class was', 'classes were')} compared: loss, every gradient, and every gradient "
        f"after `undo`. In {len(compared) - len(differing)} of them nothing differs by more than {CLOSE:g}, relative "
        f"to the loss or the largest gradient; by {largest:.0e} at most. In {tiled}, MLPs were tiled. Tiny models say "
        "nothing of memory."
    )
    yield (
        f"In {plural(whole, 'class', 'classes')} all blocks were cut at their attention, in {partly} some, and in "
        f"{len(compared) - whole - partly} none."
    )
    yield (
        f"Steps in bfloat16 of {plural(len(halves), 'class', 'classes')} were held against those in float32, by the "
        f"norm of all gradients. In {sum(not row.farther for row in halves)} of them the step after `long_context` is "
        f"at most {FARTHER - 1:.0%} farther away than the model's own step; "
        f"{f'{ratios[len(ratios) // 2]:.2f}' if ratios else '-'} times as far in the median."
    )
    counts = [[way, str(sum(row.way == way for row in compared))] for way in Way]
    yield markdown_table(["of the classes that were compared", "classes"], counts)
    yield _table("## Where the step differs", ["class", "by"], [[code(r.name), f"{r.far:.0e}"] for r in differing])
    farther = [[code(row.name), f"{row.half:.1e}", f"{row.own_half:.1e}"] for row in halves if row.farther]
    yield _table("## Where bfloat16 rounds more", ["class", "after `long_context`", "its own"], farther)
    for way in (Way.MADE, Way.ALONE):
        yield _whys(f"{way[0].upper()}{way[1:]}", [(r.name, r.why) for r in compared if r.way == way])
    uncut = [(row.name, row.not_cut or "no block ran") for row in compared if row.not_cut or not row.cut]
    yield _whys("Why blocks were not cut", uncut)
    for problem in Problem:
        yield _whys(f"Not compared: {problem}", [(r.name, r.why) for r in rows if r.problem == problem])


def _table(heading: str, heads: list[str], cells: list[list[str]]) -> str:
    return titled(heading, markdown_table(heads, cells) if cells else "")


def _whys(heading: str, whys: Iterable[tuple[str, str]]) -> str:
    return _table(f"## {heading}", ["class", "why"], [[code(name), prose(why)] for name, why in whys])


PAGE = Page(
    "long_context",
    "<!-- Written by `python -m docs.generate` from long_context.json: run `python -m benchmarks.long_context`. -->",
    sections,
)
