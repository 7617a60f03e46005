"""The frame of the surveys: a case stays within its limits, runs resume, and pages follow from their figures."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import (
    guard_survey,
    kept_bytes,
    long_context,
    policies,
    release_table,
    stacks,
    versions,
    wild,
)
from benchmarks.faults import report as faults_report
from benchmarks.survey import TOO_LARGE, TOO_LONG, Page, Row, Survey, rows_of

PAGES = (faults_report, guard_survey, kept_bytes, long_context, policies, release_table, stacks, versions, wild)


def measure(name: str) -> Row:
    """Behave as the name says."""
    if name == "waste":
        filled = bytearray(os.urandom(2**26))
        time.sleep(30)
        return {"bytes": len(filled)}
    if name == "die":
        os._exit(3)
    if name == "raise":
        raise ValueError("on\ntwo lines")
    if name == "wait":
        time.sleep(30)
    return {"length": len(name)}


def made(**changes: Any) -> Survey:
    options: dict[str, Any] = {"conclude": lambda rows, known, page: any("problem" in row for row in rows)}
    cases = ["a", "bb", "raise", "die", "wait", "waste"]
    return Survey("own", "What it is.", lambda: cases, measure, **{**options, **changes})


def test_what_a_case_does_costs_that_case_alone(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    made(seconds=3).run(["raise", "die", "wait", "a"], file, jobs=2)
    made(seconds=30, most_bytes=2**20).run(["waste"], file)
    rows = {row["case"]: row.get("problem", row.get("length")) for row in rows_of(file)}
    said = "ValueError: on two lines"
    assert rows == {"raise": said, "die": "exit code 3", "wait": TOO_LONG, "a": 1, "waste": TOO_LARGE}


def test_no_case_is_begun_after_the_time(tmp_path: Path) -> None:
    made().run(["a"], tmp_path / "rows.jsonl", in_all=-1)
    assert rows_of(tmp_path / "rows.jsonl") == []


def test_a_run_goes_on_where_one_broke_off(tmp_path: Path) -> None:
    file = tmp_path / "new" / "rows.jsonl"
    file.parent.mkdir()
    file.write_text('{"case": "a", "length": 9}\n{"case": "bb", "len', encoding="utf-8")
    assert made().main([str(file), "a", "bb"]) == 0
    assert rows_of(file) == [{"case": "a", "length": 9}, {"case": "bb", "length": 2}]
    assert made().main([str(file), "raise"]) == 1
    assert made().main([str(file), "a", "--again"]) == 0
    assert rows_of(file) == [{"case": "a", "length": 1}]


def test_the_latest_row_of_a_case_counts(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"case": "a", "problem": "once"}\n{"case": "a", "length": 1}\n', encoding="utf-8")
    assert made().main([str(file), "a"]) == 0


@pytest.mark.parametrize("module", PAGES, ids=lambda module: module.__name__)
def test_a_page_in_the_repository_is_made_from_its_figures(module: ModuleType) -> None:
    page: Page = module.PAGE
    assert page.markdown.read_text(encoding="utf-8") == page.text()
