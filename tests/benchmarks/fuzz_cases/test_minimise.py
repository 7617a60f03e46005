"""What a failure does not need is dropped, and nothing that it needs."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks.fuzz_cases.case import Case
from benchmarks.fuzz_cases.judge import Outcome, Result
from benchmarks.fuzz_cases.minimise import minimised

pytestmark = pytest.mark.torch

LARGE = Case(1, "ThreeSteps", ("Dropout", "PythonDraw", "LayerNorm", "BatchNorm"), blocks=3, every_n=2, offload="cpu")


def test_only_what_fails_stays() -> None:
    def run(case: Case) -> Result:
        return Result(case, Outcome.SILENT if "PythonDraw" in case.features else Outcome.EQUAL)

    smallest = minimised(run(LARGE), run)
    assert str(smallest.case) == "1/OneStep/PythonDraw/"


def test_what_fails_together_stays_together() -> None:
    def run(case: Case) -> Result:
        wrong = {"PythonDraw", "BatchNorm"} <= set(case.features) and case.offload and case.scenario == "ThreeSteps"
        return Result(case, Outcome.STATE if wrong else Outcome.REFUSED)

    smallest = minimised(run(LARGE), run)
    assert str(smallest.case) == "1/ThreeSteps/PythonDraw+BatchNorm/offload:cpu"


def test_another_failure_is_not_taken_for_it() -> None:
    def run(case: Case) -> Result:
        kind = "KeyError" if "LayerNorm" in case.features else "RuntimeError"
        return Result(case, Outcome.CRASHED, f"{kind}: message {len(case.features)}")

    smallest = minimised(run(LARGE), run)
    assert smallest.case.features == ("LayerNorm",)
