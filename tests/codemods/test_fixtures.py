"""Every case of every rule: `<rule>/<case>.before.py`, and `<case>.after.py` unless nothing is to change.

A case whose name ends in `.unsafe` is run with the unsafe repairs. A new case is a new file.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from codemods import RULES
from codemods.rule import Rule
from tests.codemods.tools import check_noop, check_transformed, files_of

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
