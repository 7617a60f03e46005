"""The cases: faults are reported, and what cannot run is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.cases import __main__ as cases
from benchmarks.cases.__main__ import DOORS, SCRIPTS, differences, main, read

RIGHT = """
SAID = {"says": ["loss"], "never": ["proved"]}
DOORS = {"plain": SAID, "check": {}}
print("step 0 loss 1.0")
"""


def written(tmp_path: Path, text: str) -> Path:
    script = tmp_path / "case.py"
    script.write_text(text, encoding="utf-8")
    return script


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.py")), ids=lambda script: script.stem)
def test_each_case_says_what_is_right(script: Path) -> None:
    case = read(script)
    assert case.doors.keys() <= DOORS.keys()
    assert {key for right in case.doors.values() for key in right} <= {"exit", "says", "never", "cures"}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("", "", []),
        ('["loss"]', '["lost"]', ["plain: does not say 'lost'"]),
        ('["proved"]', '["step"]', ["plain: says 'step'"]),
        ('{"says"', '{"exit": 1, "says"', ["plain: exit code 0, not 1"]),
        ("print(", "import os\nprint('step', os.getpid(), ", ["plain: other steps than plain Python's"]),
    ],
)
def test_what_differs_is_reported(tmp_path: Path, old: str, new: str, told: list[str]) -> None:
    assert differences(read(written(tmp_path, RIGHT.replace(old, new)))) == told


def test_a_case_that_differs_fails_and_what_is_not_installed_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cases, "SCRIPTS", tmp_path)
    wrong = RIGHT.replace("loss", "lost", 1)
    written(tmp_path, wrong)
    assert main([]) == 1
    assert "case (plain, check): plain: does not say 'lost'" in capsys.readouterr().out
    written(tmp_path, f'NEEDS = ["torch>=999"]\n{wrong}')
    assert main([]) == 0
    assert "skipped: needs torch>=999" in capsys.readouterr().out
    assert main(["no_such_case"]) == 2
    assert "no such case: no_such_case" in capsys.readouterr().err


@pytest.mark.both
@pytest.mark.torch
def test_a_real_case_does_what_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert main(["renamed_parameters"]) == 0, capsys.readouterr().out
