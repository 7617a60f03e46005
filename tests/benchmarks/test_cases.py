"""The cases: faults are reported, and what cannot run is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.cases import __main__ as cases
from benchmarks.cases.__main__ import ARGUMENTS, SCRIPTS, Case, Result, judge, main, read
from benchmarks.figures import console_of

RIGHT = """
SAID = {"says": ["loss"], "never": ["proved"]}
DOORS = {"plain": SAID, "check": {}}
print("step 0 loss 1.0")
"""


@pytest.fixture
def case(tmp_path: Path) -> Case:
    script = tmp_path / "right.py"
    script.write_text(RIGHT, encoding="utf-8")
    return read(script)


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.py")), ids=lambda script: script.stem)
def test_each_case_says_what_is_right(script: Path) -> None:
    case = read(script)
    assert case.doors.keys() <= ARGUMENTS.keys()
    keys = {key for right in case.doors.values() for key in right}
    assert keys <= {"exit", "says", "never", "cures"}


def test_a_case_that_does_what_is_right_is_right(case: Case) -> None:
    assert judge(case).right


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('["loss"]', '["lost"]', "does not say 'lost'"),
        ('["proved"]', '["step"]', "says 'step'"),
        ('{"says"', '{"exit": 1, "says"', "exit code 0, not 1"),
        ("print(", "import os\nprint('step', os.getpid(), ", "other steps than plain Python's"),
    ],
)
def test_what_differs_is_reported(tmp_path: Path, old: str, new: str, told: str) -> None:
    script = tmp_path / "wrong.py"
    script.write_text(RIGHT.replace(old, new), encoding="utf-8")
    (line,) = judge(read(script)).differences["plain"]
    assert line == told


def test_what_is_not_installed_is_skipped(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    lacking = Case(case.script, case.doors, ["torch>=999"])
    assert judge(lacking) == Result(lacking)
    console_of(80).print(cases.table([judge(lacking)]))
    assert "skipped: needs torch>=999" in capsys.readouterr().out


def test_a_case_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no_such_case"]) == 2
    assert "no such case: no_such_case" in capsys.readouterr().err


@pytest.mark.both
@pytest.mark.torch
def test_a_real_case_does_what_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert main(["renamed_parameters"]) == 0, capsys.readouterr().out
