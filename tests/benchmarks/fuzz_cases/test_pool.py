"""A case that hangs or kills its process costs that case only."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection

import pytest

pytest.importorskip("torch")

from benchmarks.fuzz_cases import pool
from benchmarks.fuzz_cases.case import Case
from benchmarks.fuzz_cases.judge import Outcome, Result
from benchmarks.fuzz_cases.pool import Judged, Work, judged

pytestmark = pytest.mark.torch

HANGS, DIES = 3, 5


def work(connection: Connection, given: Work) -> None:
    """Stands in for the body of a worker."""
    connection.send(None)
    while True:
        try:
            case = connection.recv()
        except EOFError:
            return
        if case.seed == HANGS:
            time.sleep(600)
        if case.seed == DIES:
            os._exit(1)
        result = Result(case, Outcome.EQUAL)
        connection.send(Judged(result, result))


def broken(connection: Connection, given: Work) -> None:
    """Stands in for a worker that cannot even start."""


def test_a_hang_and_a_death_cost_one_case_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_work", work)
    results = [pair.result for pair in judged(map(Case.drawn, range(8)), 2, seconds=5)]
    outcomes = {result.case.seed: result.outcome for result in results}
    assert len(results) == 8
    assert {seed for seed, outcome in outcomes.items() if outcome is not Outcome.EQUAL} == {HANGS, DIES}
    assert (outcomes[HANGS], outcomes[DIES]) == (Outcome.HANG, Outcome.CRASHED)


def test_a_process_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_work", broken)
    with pytest.raises(RuntimeError, match="could not start"):
        list(judged([Case.drawn(1)], 1))
