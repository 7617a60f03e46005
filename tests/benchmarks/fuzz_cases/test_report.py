"""Counts, reasons, what failing cases have in common, and their groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from rich.console import Console

from benchmarks.fuzz_cases.case import Case, Mode
from benchmarks.fuzz_cases.judge import Outcome, Result
from benchmarks.fuzz_cases.pool import Judged
from benchmarks.fuzz_cases.report import counted, groups, lifts, reasons, tables

pytestmark = pytest.mark.torch


def result(outcome: Outcome, *features: str, reason: str = "", mode: Mode = "reentrant", named: bool = True) -> Result:
    return Result(Case(1, mode, None, 1, 2, features, "OneStep"), outcome, reason, ("a: 1 instead of 2",), named)


SILENT = result(Outcome.SILENT, "PythonDraw", "Dropout")
RESULTS = [
    *[SILENT] * 5,
    *[result(Outcome.EQUAL, "Dropout")] * 20,
    *[result(Outcome.REFUSED, "Dropout", "Mask", reason="one")] * 2,
    replace(result(Outcome.REFUSED, "Mask", reason="one"), torch_gradients=True),
    result(Outcome.REFUSED, reason="two", named=False),
    result(Outcome.INVALID, "PythonDraw", mode="non_reentrant"),
]


def test_outcomes_are_counted_by_mode() -> None:
    counts = counted(RESULTS)
    assert counts[Outcome.SILENT, "reentrant"] == 5
    assert counts[Outcome.INVALID, "non_reentrant"] == 1


def test_refusals_are_counted_by_reason_with_the_smallest_case() -> None:
    rows = reasons(RESULTS, Outcome.REFUSED)
    assert [(row.text, row.count, row.torch_gradients, row.smallest.case.features) for row in rows] == [
        ("one", 3, 1, ("Mask",)),
        ("two", 1, 0, ()),
    ]


def test_features_are_ranked_by_how_much_more_often_they_fail() -> None:
    first, *others = lifts(RESULTS)
    assert (first.tag, first.failed, first.cases) == ("PythonDraw", 5, 5)
    assert first.lift == pytest.approx(29 / 5)
    assert all(row.lift < first.lift for row in others)
    assert "Mask" not in {row.tag for row in others}


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
    assert "30 cases" in text
    assert "1 refusals do not name a block" in text
    assert str(SILENT.case) in text
