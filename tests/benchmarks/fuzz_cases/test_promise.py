"""The promise of `wrap_blocks` on 600 random cases: gradients, weights and state of a run without it, or a refusal.

`benchmarks/fuzz_cases` makes the cases; `python -m benchmarks.fuzz` runs others, and more.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks.fuzz_cases.case import KINDS, STORES, Case
from benchmarks.fuzz_cases.judge import FAILURES, REFUSALS, Outcome, judge

pytestmark = [pytest.mark.torch, pytest.mark.slow]

CHUNK = 50
FIRST_SEEDS = range(7_000_000, 7_000_600, CHUNK)
CASES = [Case.drawn(first + number) for first in FIRST_SEEDS for number in range(CHUNK)]


def test_the_cases_are_spread_over_kinds_and_offload() -> None:
    for offload in (None, *STORES):
        assert sum(case.offload == offload for case in CASES) > len(CASES) // 100
    for kind in KINDS:
        assert sum(kind in case.kinds for case in CASES) > len(CASES) // 100
    assert sum(case.offload is not None and bool(case.save) for case in CASES) > len(CASES) // 100


@pytest.mark.parametrize("first", FIRST_SEEDS)
def test_a_surgery_trains_as_without_or_refuses_by_name(first: int) -> None:
    results = [judge(Case.drawn(seed)) for seed in range(first, first + CHUNK)]
    assert [(str(r.case), r.outcome, r.detail[:1]) for r in results if r.outcome in FAILURES] == []
    assert [str(r.case) for r in results if r.outcome in REFUSALS and not r.names_block] == []
    assert sum(result.outcome in (Outcome.EQUAL, Outcome.HARMLESS) for result in results) > CHUNK // 3
    assert sum(result.outcome is Outcome.INVALID for result in results) < CHUNK // 5
