"""Every case of every rule, in the format of tests/codemods/tools.py. A new case is a new file."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ckpt_surgery.codemods import RULES, Rule
from tests.codemods.preludes import PRELUDES
from tests.codemods.tools import check_noop, check_transformed, files_of, sides, tree

HERE = Path(__file__).parent
UNCHANGED = sorted(HERE.glob("*/*.noop.py"))
CHANGED = sorted(HERE.glob("*/*.diff"))


def sentence(case: Path) -> str:
    name = case.name.removesuffix(".diff").removesuffix(".noop.py")
    return f"{case.parent.name}: {name.replace('_', ' ')}"


def read(case: Path) -> tuple[str, str]:
    """Split the fixture into the case before and after."""
    text = case.read_text(encoding="utf-8")
    return sides(text) if case in CHANGED else (text, text)


@pytest.mark.parametrize("case", UNCHANGED, ids=sentence)
def test_unchanged(tmp_path: Path, case: Path) -> None:
    check_noop(tmp_path, read(case)[0], unsafe=".unsafe." in case.name)


@pytest.mark.parametrize("case", CHANGED, ids=sentence)
def test_changed(tmp_path: Path, case: Path) -> None:
    before, after = read(case)
    assert files_of(before)[1] != files_of(after)[1], "nothing changes: this is a .noop.py"
    check_transformed(tmp_path, before, after, unsafe=".unsafe." in case.name)


@pytest.mark.skipif(importlib.util.find_spec("ruff") is None, reason="needs ruff")
@pytest.mark.parametrize(
    "command",
    [["format", "--check"], ["check", "--select=F401,I001", "--config=lint.isort.lines-after-imports=2"]],
    ids=["needs no reformatting", "raises no lint"],
)
def test_what_was_in_order_before_is_in_order_after(tmp_path: Path, command: list[str]) -> None:
    faults: dict[str, set[int]] = {"before": set(), "after": set()}
    for number, case in enumerate(CHANGED):
        for kind, text in zip(faults, read(case), strict=True):
            models = [file for path, file in files_of(text)[1].items() if path.startswith("models/")]
            tree(tmp_path / kind, {f"{number}_{part}.py": file for part, file in enumerate(models)})
    options = ["--isolated", "--quiet", "--line-length=119", "--target-version=py310", "--no-cache"]
    for kind, numbers in faults.items():
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, *options, str(tmp_path / kind)], capture_output=True, text=True
        )
        assert done.stderr == "", done.stderr
        assert done.returncode in (0, 1)
        numbers.update(int(number) for number in re.findall(r"(\d+)_\d+\.py", done.stdout))
    assert len(CHANGED) - len(faults["before"]) > 40, "too few cases are in order before"
    new = faults["after"] - faults["before"]
    assert [sentence(CHANGED[number]) for number in sorted(new)] == []


def test_every_file_is_a_case() -> None:
    assert {path for path in HERE.glob("*/*") if path.parent.name != "__pycache__"} == {*UNCHANGED, *CHANGED}


def test_every_prelude_is_used() -> None:
    cases = (*UNCHANGED, *CHANGED, *HERE.parent.glob("trainings/*"))
    texts = (case.read_text(encoding="utf-8") for case in cases if case.is_file())
    used = {name for text in texts for name in re.findall(r"# prelude: (\w+)", text)}
    assert {f"{name}.prelude.py" for name in used} == {path.name for path in PRELUDES.iterdir()}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_each_rule_has_a_case_that_it_finds_and_one_that_it_does_not(rule: Rule) -> None:
    cases = [case for case in (*UNCHANGED, *CHANGED) if case.parent.name == rule.name]
    codes = [{finding.code for finding in files_of(read(case)[0])[0]} for case in cases]
    assert any(rule.code in case_codes for case_codes in codes)
    assert any(rule.code not in case_codes for case_codes in codes)
