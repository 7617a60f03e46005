"""What many cases came to: outcomes by kind, reasons of refusals, and the smallest of the cases that fail alike."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table

from benchmarks.fuzz_cases.catalog import KINDS
from benchmarks.fuzz_cases.judge import FAILURES, REFUSALS, Outcome, Result
from benchmarks.fuzz_cases.pool import Judged

_ALL = "all"


@dataclass(frozen=True, slots=True)
class Group:
    """Cases that have something in common: what, how many, and the smallest of them."""

    text: str
    count: int
    smallest: Result


def counted(results: Iterable[Result]) -> Counter[tuple[str, Outcome]]:
    """Cases by kind and outcome. A case of several kinds counts for each."""
    return Counter((kind, result.outcome) for result in results for kind in (_ALL, *result.case.kinds))


def told_after(results: Iterable[Result]) -> list[tuple[int, int]]:
    """In how many steps what began late was refused, and how often."""
    refused = (result for result in results if result.case.late and result.outcome in REFUSALS)
    return sorted(Counter(result.told_after for result in refused).items())


def reasons(results: Iterable[Result], outcome: Outcome) -> list[Group]:
    """The reasons of the cases with an outcome, the most frequent first."""
    by_reason: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        if result.outcome is outcome:
            by_reason[result.reason].append(result)
    return _ordered(by_reason.values())


def groups(judged: Iterable[Judged]) -> list[Group]:
    """The failing cases by what they come down to, the most frequent first."""
    alike: dict[tuple[object, ...], list[Result]] = defaultdict(list)
    for pair in judged:
        if pair.result.outcome in FAILURES:
            case = pair.smallest.case
            alike[(pair.result.outcome, frozenset(case.features), case.scenario)].append(pair.smallest)
    return _ordered(alike.values())


def _ordered(alike: Iterable[list[Result]]) -> list[Group]:
    rows = [Group(rs[0].reason, len(rs), min(rs, key=lambda r: r.case.size)) for rs in alike]
    return sorted(rows, key=lambda row: (-row.count, str(row.smallest.case)))


def tables(judged: Sequence[Judged]) -> list[RenderableType]:
    """All of it, to be printed; the outcomes by kind come last."""
    results = [pair.result for pair in judged]
    parts: list[RenderableType] = []
    for outcome in (Outcome.REFUSED, Outcome.FALSE_ALARM, Outcome.HARMLESS, Outcome.TORCH_RAISES, Outcome.INVALID):
        if rows := reasons(results, outcome):
            parts.append(_table(outcome, ("cases", "reason", "example: --case"), map(_reason, rows)))
    if failing := groups(judged):
        headings = ("cases", "outcome", "rerun with --case", "what differs")
        parts.append(_table("failing cases, minimised", headings, map(_failure, failing)))
    return [*parts, _outcomes(results)]


def _reason(row: Group) -> tuple[str, ...]:
    return str(row.count), row.text, str(row.smallest.case)


def _failure(row: Group) -> tuple[str, ...]:
    smallest = row.smallest
    detail = smallest.detail[0] if smallest.detail else smallest.reason
    return str(row.count), smallest.outcome, str(smallest.case), " ".join(detail.split())[:160]


def _outcomes(results: Sequence[Result]) -> Table:
    counts = counted(results)
    rows = [(kind, *(str(counts[kind, outcome] or "") for outcome in Outcome)) for kind in (*KINDS, _ALL)]
    grid = _table(f"{len(results)} cases", ("kind", *Outcome), rows)
    unnamed = sum(result.outcome in REFUSALS and not result.names_block for result in results)
    told = ", ".join(f"{count} after {steps}" for steps, count in told_after(results))
    grid.caption = f"refused in cases that begin late, by steps: {told or 'none'}; {unnamed} refusals name no block"
    return grid


def _table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    grid = Table(title=title, title_style="bold")
    for heading in headings:
        grid.add_column(heading, overflow="fold")
    for row in rows:
        grid.add_row(*row)
    return grid
