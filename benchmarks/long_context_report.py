"""`long_context` on every causal and conditional class: its figures, and its page. `long_context` measures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import Any

from ckpt_surgery.planning.devices import MARGIN
from ckpt_surgery.text import code, listed, markdown_table, plural, prose

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "coverage" / "long_context.json"
"""Where the figures of the page are kept."""
CARDS = FIGURES.with_name("long_context_cards.json")
"""Where the figures of the table in docs/how-to/long-context.md are kept."""
MEMORIES = (24, 48, 80, 141)
"""Gigabytes of the cards in it."""
NOTICE = (
    "<!-- Written by `python -m docs.generate` from long_context.json: run `python -m benchmarks.long_context`. -->"
)
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
    problem: Problem | None
    way: Way | None
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


@dataclass(frozen=True, slots=True)
class LongContextFigures:
    """The figures of the survey: `rows` out of this many `classes`, and the `versions` of torch and transformers."""

    versions: Mapping[str, str]
    classes: int
    rows: tuple[Row, ...]


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


def figures_of(data: Iterable[Mapping[str, Any]], versions: Mapping[str, str], classes: int) -> LongContextFigures:
    """Return the figures of what `long_context` wrote; of a class that was examined twice the later counts."""
    rows = {each["class"]: row_of(each) for each in data}
    return LongContextFigures(versions, classes, tuple(rows[name] for name in sorted(rows)))


def read_figures(path: Path | None = None) -> LongContextFigures:
    """Return the figures. Raises OSError, or KeyError or ValueError where they are not such."""
    data = json.loads((path or FIGURES).read_text(encoding="utf-8"))
    rows = (
        Row(
            **{
                **row,
                "problem": row["problem"] and Problem(row["problem"]),
                "way": row["way"] and Way(row["way"]),
            }
        )
        for row in data["rows"]
    )
    return LongContextFigures(data["versions"], data["classes"], tuple(rows))


def write_figures(figures: LongContextFigures, path: Path | None = None) -> None:
    """Keep the figures, one class a line."""
    rows = ",\n".join(f"  {json.dumps(asdict(row))}" for row in figures.rows)
    head = json.dumps({"versions": figures.versions, "classes": figures.classes})[:-1]
    (path or FIGURES).write_text(f'{head}, "rows": [\n{rows}\n]}}\n', encoding="utf-8")


def peak_ratio(rows: Iterable[Row]) -> float | None:
    """Return the most bytes alive without `long_context` over those with it, in the median of fused classes."""
    ratios = sorted(row.own_peak / row.peak for row in rows if row.way is Way.FUSED and row.peak)
    return ratios[len(ratios) // 2] if ratios else None


def page(figures: LongContextFigures) -> str:
    """Return the page in docs/coverage."""
    versions = listed([f"{name} {version}" for name, version in figures.versions.items()])
    compared = [row for row in figures.rows if row.problem is None]
    differing = [row for row in compared if row.differs]
    largest = max((row.far for row in compared if not row.differs), default=0.0)
    counts = [[way, str(sum(row.way is way for row in compared))] for way in Way]
    tiled = sum(row.tiled > 0 for row in compared)
    whole = sum(row.cut > 0 and not row.not_cut for row in compared)
    partly = sum(row.cut > 0 and bool(row.not_cut) for row in compared)
    halves = [row for row in compared if 0 < row.own_half < inf]
    parts = [
        NOTICE,
        "# long_context by class",
        f"A training step after `long_context` held against the step of the model's own code, in float64, for tiny "
        f"models with random weights ({versions}): {len(figures.rows)} of {figures.classes} classes for causal and "
        "conditional generation. `python -m benchmarks.long_context` measures it, and goes on where it stopped.",
        f"{plural(len(compared), 'class was', 'classes were')} compared: loss, every gradient, and every gradient "
        f"after `undo`. In {len(compared) - len(differing)} of them nothing differs by more than {CLOSE:g}, relative "
        f"to the loss or the largest gradient; by {largest:.0e} at most. In {tiled}, MLPs were tiled. Tiny models say "
        "nothing of memory.",
        f"In {plural(whole, 'class', 'classes')} all blocks were cut at their attention, in {partly} some, and in "
        f"{len(compared) - whole - partly} none.",
        f"Steps in bfloat16 of {plural(len(halves), 'class', 'classes')} were held against those in float32, by the "
        f"norm of all gradients. In {sum(not row.farther for row in halves)} of them the step after `long_context` is "
        f"at most {FARTHER - 1:.0%} farther away than the model's own step; {_median_farther(halves)} times as far in "
        "the median.",
        markdown_table(["of the classes that were compared", "classes"], counts),
    ]
    if differing:
        rows = [[code(row.name), f"{row.far:.0e}"] for row in differing]
        parts += ["## Where the step differs", markdown_table(["class", "by"], rows)]
    if farther := [row for row in halves if row.farther]:
        rows = [[code(row.name), f"{row.half:.1e}", f"{row.own_half:.1e}"] for row in farther]
        parts += ["## Where bfloat16 rounds more", markdown_table(["class", "after `long_context`", "its own"], rows)]
    for way in (Way.MADE, Way.ALONE):
        parts += _group(f"## {way[0].upper()}{way[1:]}", [row for row in compared if row.way is way])
    whys = [[code(row.name), prose(row.not_cut or "no block ran")] for row in compared if row.not_cut or not row.cut]
    if whys:
        parts += ["## Why blocks were not cut", markdown_table(["class", "why"], whys)]
    for problem in Problem:
        rows_of = [row for row in figures.rows if row.problem is problem]
        parts += _group(f"## Not compared: {problem}", rows_of)
    return "\n\n".join(parts) + "\n"


def _median_farther(rows: Iterable[Row]) -> str:
    ratios = sorted(row.half / row.own_half for row in rows)
    return f"{ratios[len(ratios) // 2]:.2f}" if ratios else "-"


def _group(heading: str, rows: Iterable[Row]) -> list[str]:
    cells = [[code(row.name), prose(row.why)] for row in rows]
    return [heading, markdown_table(["class", "why"], cells)] if cells else []


@dataclass(frozen=True, slots=True)
class Line:
    """A peak in bytes as a line over tokens: a `fixed` part, and a `slope` for each token."""

    fixed: int
    slope: float


@dataclass(frozen=True, slots=True)
class CardRow:
    """A way to train, with tiles on the `host` or not: its peak is the highest of `lines`.

    The inputs of blocks take `host_bytes` of the host's memory for each token.
    """

    recipe: str
    host: bool
    lines: tuple[Line, ...]
    host_bytes: int

    def peak(self, tokens: int) -> float:
        """Return the peak of a step of so many tokens, in bytes."""
        return max(line.fixed + line.slope * tokens for line in self.lines)

    def tokens(self, gigabytes: int) -> int:
        """Return how many tokens fit on a card, in thousands rounded down; 0 if the model does not."""
        room = gigabytes * 1e9 * (1 - MARGIN)
        return max(int(min((room - line.fixed) / line.slope for line in self.lines)) // 1000 * 1000, 0)


def write_cards(rows: Iterable[CardRow], path: Path | None = None) -> None:
    """Keep what was predicted, one row a line."""
    lines = ",\n".join(f"  {json.dumps(asdict(row))}" for row in rows)
    (path or CARDS).write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def read_cards(path: Path | None = None) -> list[CardRow]:
    """Return what was predicted. Raises OSError, or KeyError or ValueError where it is not such."""
    data = json.loads((path or CARDS).read_text(encoding="utf-8"))
    return [CardRow(**{**row, "lines": tuple(Line(**line) for line in row["lines"])}) for row in data]


def cards_table(rows: Iterable[CardRow]) -> str:
    """Make the table of how many tokens fit on each card."""
    cells = [
        [
            f"{row.recipe}{', `host=True`' if row.host else ''}",
            *(f"{row.tokens(memory):,}" if row.tokens(memory) else "" for memory in MEMORIES),
            f"{row.lines[-1].slope / 1e6:.3f} MB",
            f"{row.host_bytes / 1e6:.2f} MB",
        ]
        for row in rows
    ]
    heads = ["", *(f"{memory} GB" for memory in MEMORIES), "a token, device", "a token, host"]
    return markdown_table(heads, cells)
