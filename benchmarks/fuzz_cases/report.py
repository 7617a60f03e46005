"""What many cases came to: counts by outcome, reasons of refusals, what failing cases have in common, reproducers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table

from benchmarks.fuzz_cases.case import MODES
from benchmarks.fuzz_cases.judge import FAILURES, REFUSALS, Outcome, Result
from benchmarks.fuzz_cases.pool import Judged

_MOST_TAGS = 25
_LEAST_CASES = 5


@dataclass(frozen=True, slots=True)
class Lift:
    """How much more often cases with a tag fail than cases do: `failed` of `cases`."""

    tag: str
    failed: int
    cases: int
    lift: float


@dataclass(frozen=True, slots=True)
class Group:
    """Failing cases that come down to the same features and training loop: how many, and the smallest of one."""

    count: int
    smallest: Result


def counted(results: Iterable[Result]) -> Counter[tuple[Outcome, str]]:
    """Cases by outcome and mode."""
    return Counter((result.outcome, result.case.mode) for result in results)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why cases were refused, or count for nothing: how many, and the smallest of them.

    `torch_gradients` is in how many of them torch's own checkpointing has the right gradients.
    """

    text: str
    count: int
    torch_gradients: int
    smallest: Result


def reasons(results: Iterable[Result], outcome: Outcome) -> list[Reason]:
    """The reasons of the cases with an outcome, the most frequent first."""
    by_reason: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        if result.outcome is outcome:
            by_reason[result.reason].append(result)
    rows = [
        Reason(text, len(rs), sum(r.torch_gradients for r in rs), min(rs, key=lambda r: len(r.case.tags)))
        for text, rs in by_reason.items()
    ]
    return sorted(rows, key=lambda row: -row.count)


def lifts(results: Sequence[Result]) -> list[Lift]:
    """The tags that failing cases have more often than others, by how much."""
    valid = [result for result in results if result.outcome is not Outcome.INVALID]
    failing = [result for result in valid if result.outcome in FAILURES]
    cases = Counter(tag for result in valid for tag in result.case.tags)
    failed = Counter(tag for result in failing for tag in result.case.tags)
    rate = len(failing) / max(len(valid), 1)
    rows = [Lift(tag, failed[tag], count, failed[tag] / count / rate) for tag, count in cases.items() if failed[tag]]
    often = [row for row in rows if row.cases >= _LEAST_CASES and row.lift > 1]
    return sorted(often, key=lambda row: (-row.lift, -row.failed))[:_MOST_TAGS]


def groups(judged: Iterable[Judged]) -> list[Group]:
    """The failing cases by what they come down to, the most frequent first."""
    alike: dict[tuple[object, ...], list[Result]] = defaultdict(list)
    for pair in judged:
        if pair.result.outcome in FAILURES:
            case = pair.smallest.case
            alike[(pair.result.outcome, frozenset(case.features), case.scenario)].append(pair.smallest)
    rows = [Group(len(rs), min(rs, key=lambda r: (len(r.case.tags), r.case.mode))) for rs in alike.values()]
    return sorted(rows, key=lambda row: (-row.count, str(row.smallest.case)))


def tables(judged: Sequence[Judged]) -> list[RenderableType]:
    """All of it, to be printed."""
    results = [pair.result for pair in judged]
    parts: list[RenderableType] = [_outcomes(results)]
    for outcome in (Outcome.REFUSED, Outcome.REFUSED_THOUGH_TORCH_IS_RIGHT, Outcome.TORCH_RAISES, Outcome.INVALID):
        if rows := reasons(results, outcome):
            parts.append(_reasons(outcome, rows))
    if tags := lifts(results):
        parts.append(_lifts(tags))
    if failing := groups(judged):
        parts.append(_groups(failing))
    return parts


def _outcomes(results: Sequence[Result]) -> Table:
    counts = counted(results)
    grid = Table(title=f"{len(results)} cases", title_style="bold")
    for heading in ("outcome", *MODES, "all"):
        grid.add_column(heading, justify="left" if heading == "outcome" else "right", no_wrap=True)
    for outcome in Outcome:
        numbers = [counts[outcome, mode] for mode in MODES]
        grid.add_row(outcome, *map(str, numbers), str(sum(numbers)))
    unnamed = sum(result.outcome in REFUSALS and not result.names_block for result in results)
    grid.caption = f"{unnamed} refusals do not name a block"
    return grid


def _reasons(outcome: Outcome, rows: Sequence[Reason]) -> Table:
    grid = Table(title=outcome, title_style="bold")
    grid.add_column("cases", justify="right")
    grid.add_column("torch's gradients right", justify="right")
    grid.add_column("reason")
    grid.add_column("example: --case", overflow="fold")
    for row in rows:
        grid.add_row(str(row.count), str(row.torch_gradients), row.text, str(row.smallest.case))
    return grid


def _lifts(rows: Sequence[Lift]) -> Table:
    grid = Table(title="what failing cases have", title_style="bold")
    for heading in ("feature", "failed", "cases", "lift"):
        grid.add_column(heading, justify="left" if heading == "feature" else "right", no_wrap=True)
    for row in rows:
        grid.add_row(row.tag, str(row.failed), str(row.cases), f"{row.lift:.1f}")
    return grid


def _groups(rows: Sequence[Group]) -> Table:
    grid = Table(title="failing cases, minimised", title_style="bold")
    grid.add_column("cases", justify="right")
    grid.add_column("outcome")
    grid.add_column("rerun with --case", overflow="fold")
    grid.add_column("what differs", overflow="fold")
    for row in rows:
        smallest = row.smallest
        detail = smallest.detail[0] if smallest.detail else smallest.reason
        grid.add_row(str(row.count), smallest.outcome, str(smallest.case), " ".join(detail.split())[:160])
    return grid
