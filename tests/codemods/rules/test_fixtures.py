"""Every case of every rule: `<rule>/<case>.before.py`, and `<case>.after.py` unless nothing is to change.

A case whose name ends in `.unsafe` is run with the unsafe repairs. A new case is a new file.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ckpt_surgery.codemods import RULES
from ckpt_surgery.codemods.rule import Rule
from tests.codemods.tools import check_noop, check_transformed, files_of, tree

HERE = Path(__file__).parent


def after_of(before: Path) -> Path:
    return before.with_name(before.name.replace(".before.py", ".after.py"))


CASES = sorted(HERE.glob("*/*.before.py"), key=lambda path: (path.parent.name, after_of(path).exists(), path.name))


def sentence(before: Path) -> str:
    return f"{before.parent.name}: {before.name.removesuffix('.before.py').replace('_', ' ')}"


@pytest.mark.parametrize("before", CASES, ids=sentence)
def test_case(tmp_path: Path, before: Path) -> None:
    unsafe = before.name.endswith(".unsafe.before.py")
    text = before.read_text(encoding="utf-8")
    after = after_of(before)
    if after.exists():
        check_transformed(tmp_path, text, after.read_text(encoding="utf-8"), unsafe=unsafe)
    else:
        check_noop(tmp_path, text, unsafe=unsafe)


@pytest.mark.skipif(importlib.util.find_spec("ruff") is None, reason="needs ruff")
@pytest.mark.parametrize(
    "command",
    [["format", "--check"], ["check", "--select=F401,I001", "--config=lint.isort.lines-after-imports=2"]],
    ids=["needs no reformatting", "raises no lint"],
)
def test_what_was_in_order_before_is_in_order_after(tmp_path: Path, command: list[str]) -> None:
    afters = [case for case in CASES if after_of(case).exists()]
    faults: dict[str, set[int]] = {}
    for kind, paths in (("before", afters), ("after", map(after_of, afters))):
        for number, path in enumerate(paths):
            files = files_of(path.read_text(encoding="utf-8"))[1]
            for part, text in enumerate(text for name, text in files.items() if name.startswith("models/")):
                tree(tmp_path / kind, {f"{number}_{part}.py": text})
        options = ["--isolated", "--quiet", "--line-length=119", "--target-version=py310", "--no-cache"]
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, *options, str(tmp_path / kind)], capture_output=True, text=True
        )
        assert done.returncode in (0, 1), done.stderr
        faults[kind] = {int(found) for found in re.findall(r"(\d+)_\d+\.py", done.stdout)}
    assert len(afters) - len(faults["before"]) > 40, "too few cases are in order before"
    new = faults["after"] - faults["before"]
    assert [sentence(afters[number]) for number in sorted(new)] == []


def test_every_file_of_a_case_belongs_to_one() -> None:
    afters = set(HERE.glob("*/*.after.py"))
    assert afters == {after for before in CASES if (after := after_of(before)).exists()}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_each_rule_has_a_case_that_it_finds_and_one_that_it_does_not(rule: Rule) -> None:
    told = [
        {one.code for one in files_of(case.read_text(encoding="utf-8"))[0]}
        for case in CASES
        if case.parent.name == rule.name
    ]
    assert any(rule.code in codes for codes in told)
    assert any(rule.code not in codes for codes in told)
