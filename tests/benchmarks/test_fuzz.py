"""The command: what it prints and ends with, for many cases and for one."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks import fuzz
from benchmarks.fuzz import cases, main
from benchmarks.fuzz_cases import judge, pool
from benchmarks.fuzz_cases.case import Case
from benchmarks.fuzz_cases.judge import Outcome, Result
from benchmarks.fuzz_cases.pool import Judged, Work

pytestmark = pytest.mark.torch


def test_no_case_of_one_seed_is_one_of_another() -> None:
    first, second = cases(50, 1), cases(50, 2)
    assert {case.seed for case in first}.isdisjoint(case.seed for case in second)
    assert cases(20, 1)[3] == Case.parsed("1000003")


def test_cases_of_one_kind_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert all("late" in case.kinds for case in cases(20, 0, "late"))
    assert main(["--kind", "nothing"]) == 2
    assert "nothing is no kind" in capsys.readouterr().err


@pytest.mark.parametrize(("outcome", "code"), [(Outcome.EQUAL, 0), (Outcome.REFUSED, 0), (Outcome.SILENT, 1)])
def test_the_exit_code_says_whether_a_case_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], outcome: Outcome, code: int
) -> None:
    def judged(given: list[Case], jobs: int, work: Work) -> list[Judged]:
        results = [Result(case, outcome if number == 2 else Outcome.EQUAL) for number, case in enumerate(given)]
        return [Judged(result, result) for result in results]

    monkeypatch.setattr(pool, "judged", judged)
    assert main(["--cases", "5"]) == code
    assert "5 cases" in capsys.readouterr().out


@pytest.mark.parametrize(("outcome", "code"), [(Outcome.EQUAL, 0), (Outcome.CRASHED, 1)])
def test_one_case_shows_what_differs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], outcome: Outcome, code: int
) -> None:
    monkeypatch.setattr(judge, "judge", lambda case, treatment: Result(case, outcome, "reason", ("first", "second")))
    assert main(["--case", "12"]) == code
    assert capsys.readouterr().out.splitlines() == [str(Case.drawn(12)), outcome, "first", "second"]


def test_what_is_no_case_cannot_be_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--case", "nothing"]) == 2
    assert capsys.readouterr().err.startswith("fuzz: ")


def test_it_needs_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "lacking", lambda program, *packages: "torch" in packages)
    assert main([]) == 2


def test_a_few_cases_run_in_a_process_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cases", "3", "--whole"]) in (0, 1)
    assert "3 cases" in capsys.readouterr().out
