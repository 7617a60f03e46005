"""The smallest case that still fails as a given one does."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.fuzz_cases.case import Case
from benchmarks.fuzz_cases.judge import Outcome, Result, judge


def minimised(result: Result, run: Callable[[Case], Result] = judge) -> Result:
    """Drop features, options and blocks one at a time while the outcome stays, until nothing can be dropped.

    A crash has to keep the type of its error.
    """
    smallest = result
    while simpler := next((r for r in map(run, smallest.case.simpler()) if _alike(r, result)), None):
        smallest = simpler
    return smallest


def _alike(one: Result, other: Result) -> bool:
    if one.outcome is not other.outcome:
        return False
    return one.outcome is not Outcome.CRASHED or one.reason.partition(":")[0] == other.reason.partition(":")[0]
