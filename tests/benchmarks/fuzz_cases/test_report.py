"""Counts, reasons, and groups of failing cases."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from rich.console import Console

from benchmarks.fuzz_cases.case import Case
from benchmarks.fuzz_cases.judge import Outcome, Result
from benchmarks.fuzz_cases.pool import Judged
from benchmarks.fuzz_cases.report import counted, groups, reasons, tables, told_after

pytestmark = pytest.mark.torch


def result(outcome: Outcome, *features: str, reason: str = "", named: bool = True, late: int = 0) -> Result:
    case = Case(1, "LateSteps" if late else "OneStep", features, late=late)
    return Result(case, outcome, reason, ("a: 1 instead of 2",), named, max(late - 3, 1))


SILENT = result(Outcome.SILENT, "PythonDraw", "Dropout")
RESULTS = [
    *[SILENT] * 5,
    *[result(Outcome.EQUAL, "Dropout")] * 20,
    *[result(Outcome.REFUSED, "Dropout", "Mask", reason="one")] * 2,
    result(Outcome.REFUSED, "Mask", reason="one"),
    result(Outcome.REFUSED, reason="two", named=False),
    result(Outcome.INVALID, "PythonDraw"),
    *[result(Outcome.REFUSED, reason="late", late=late) for late in (4, 5, 5)],
]


def test_outcomes_are_counted_by_kind() -> None:
    counts = counted(RESULTS)
    assert counts["draws", Outcome.SILENT] == counts["layers", Outcome.SILENT] == counts["all", Outcome.SILENT] == 5
    assert (counts["layers", Outcome.EQUAL], counts["arguments", Outcome.REFUSED]) == (20, 3)
    assert counts["late", Outcome.REFUSED] == 3


def test_refusals_of_what_begins_late_are_counted_by_steps() -> None:
    assert told_after(RESULTS) == [(1, 1), (2, 2)]


def test_refusals_are_counted_by_reason_with_the_smallest_case() -> None:
    rows = reasons(RESULTS, Outcome.REFUSED)
    assert [(row.text, row.count, row.smallest.case.features) for row in rows] == [
        ("late", 3, ()),
        ("one", 3, ("Mask",)),
        ("two", 1, ()),
    ]


def test_failing_cases_are_grouped_by_what_they_come_down_to() -> None:
    smallest = result(Outcome.SILENT, "PythonDraw")
    pairs = [Judged(SILENT, smallest)] * 3 + [Judged(SILENT, SILENT)] + [Judged(RESULTS[-1], RESULTS[-1])]
    assert [(group.count, group.smallest) for group in groups(pairs)] == [(3, smallest), (1, SILENT)]


def test_the_tables_say_all_of_it() -> None:
    console = Console(width=200, record=True, file=None, quiet=False)
    with console.capture() as capture:
        for part in tables([Judged(result, result) for result in RESULTS]):
            console.print(part)
    text = capture.get()
    assert "33 cases" in text
    assert "1 after 1, 2 after 2; 1 refusals name no block" in text
    assert str(SILENT.case) in text
