"""The command: its output and exit codes for many cases and for one; it finds a broken product."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from benchmarks.fuzz import cases, main, report
from benchmarks.fuzz_cases import judge
from benchmarks.fuzz_cases.case import Case
from benchmarks.fuzz_cases.judge import Outcome, Result

ROOT = Path(__file__).resolve().parents[2]
BREAK = """
from functools import partial
import benchmarks.fuzz_cases.run as treated
from ckpt_surgery.runtime.checkpoint.recompute import Computation
run = Computation.__call__
def wrong(computation, *given):
    result = run(computation, *given)
    return None if result is None else result * 1.5
Computation.__call__ = wrong
treated.wrap_blocks = partial(treated.wrap_blocks, self_check="never")
"""
"""A patch that makes a checkpointed block return 1.5 times its result, and nothing look at it."""
pytestmark = pytest.mark.torch


def test_no_case_of_one_seed_is_one_of_another() -> None:
    first, second = cases(50, 1), cases(50, 2)
    assert {case.seed for case in first}.isdisjoint(case.seed for case in second)
    assert cases(20, 1)[3] == Case.parsed("1000003")


@pytest.mark.parametrize(("outcome", "code"), [(Outcome.EQUAL, 0), (Outcome.CRASHED, 1)])
def test_one_case_shows_what_differs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], outcome: Outcome, code: int
) -> None:
    monkeypatch.setattr(judge, "judge", lambda case: Result(case, outcome, "reason", ("first", "second")))
    assert main(["--case", "12"]) == code
    assert capsys.readouterr().out.splitlines() == [str(Case.drawn(12)), outcome, "first", "second"]


def fuzzed(setup: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the benchmark in a separate process: none can be forked once a backward has begun threads."""
    code = f"{setup}\nfrom benchmarks.fuzz import main\nraise SystemExit(main({list(arguments)}))"
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_broken_product_is_found_and_named() -> None:
    whole = fuzzed("", "--cases", "3")
    assert (whole.returncode, "all: " in whole.stdout) == (0, True), whole.stderr
    broken = fuzzed(BREAK, "--cases", "3")
    assert broken.returncode == 1, broken.stderr
    assert "FAILING, silent, with an example for --case:" in broken.stdout


def test_a_run_in_which_no_case_could_be_judged_fails() -> None:
    nothing = fuzzed("import torch\ntorch.Tensor.backward = None", "--cases", "2")
    assert nothing.returncode == 1, nothing.stdout
    assert "no case could be judged" in nothing.stdout


def row(outcome: Outcome, features: str = "", reason: str = "", names_block: bool = True) -> dict[str, Any]:
    return {"case": f"1/OneStep/{features}/", "outcome": outcome, "reason": reason, "names_block": names_block}


def test_the_report_counts_kinds_reasons_and_failures() -> None:
    rows = [
        *[row(Outcome.SILENT, "PythonDraw+Dropout", "a: 1")] * 5,
        *[row(Outcome.EQUAL, "Dropout")] * 20,
        *[row(Outcome.REFUSED, "Dropout+LateBinding", "one")] * 2,
        row(Outcome.REFUSED, "LateBinding", "one"),
        row(Outcome.REFUSED, reason="two", names_block=False),
    ]
    lines = list(report(rows))
    assert "    3 one  1/OneStep/LateBinding/" in lines
    assert lines.index("    5 a: 1  1/OneStep/PythonDraw+Dropout/") > lines.index(
        "FAILING, silent, with an example for --case:"
    )
    assert "layers: 20 equal, 2 refused, 5 silent" in lines
    assert lines[-1] == "1 refusals name no block"
