"""The page of a release says what it is like next to the one before, and what is not on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from benchmarks.release_report import (
    PAGES,
    RanTests,
    Release,
    Source,
    before,
    levels_of,
    read,
    section,
    verdicts_of,
    write,
)
from ckpt_surgery.measure.kinds import FaultKind
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import Fault, ModeReport, Repair

OLD = Release(
    {"transformers": "5.23.0"},
    {"A": ("ok", "ok"), "B": ("failed", "ok"), "Gone": ("ok", "ok")},
    {"B": ("state",)},
    3,
    {"past_key_values": 2, "input_ids": 3},
)
SOURCE = Source(10, {"safe": 3, "display": 1}, {"display": 1}, 0)
NEW = Release(
    {"transformers": "5.24.0"},
    {"A": ("ok", "ok"), "B": ("ok", "ok"), "New": ("not built", "not repaired"), "New (router loss)": ("ok", "ok")},
    {},
    4,
    {"cache": 2, "input_ids": 3},
    SOURCE,
    {"Planted faults": RanTests(215), "Tests that need torch": RanTests(10, ("tests/a.py::b",))},
)


def test_a_page_says_what_differs_from_the_release_before() -> None:
    text = section(NEW, OLD)
    assert "2 new classes: `New` and `New (router loss)`. Not built: 1: `New`." in text
    assert "1 class gone: `Gone`." in text
    assert "1 name vanished: `past_key_values`." in text
    assert "| `B` | failed: state | ok | ok | ok |" in text
    assert "`A` |" not in text


def test_a_page_with_fewer_classes_than_the_release_says_so() -> None:
    assert "This page has 3 of the 4 classes of the release." in section(NEW, None)
    assert "This page has" not in section(replace(NEW, classes=3), None)


def test_a_page_says_what_was_run() -> None:
    text = section(NEW, None)
    assert "`check` finds 4 faults in 10 files, and 1 after `apply`; a second `apply` changes nothing." in text
    assert "Planted faults: 215 passed, 0 failed." in text
    assert "Tests that need torch: 10 passed, 1 failed: `tests/a.py::b`." in text
    assert "changes 2 files." in section(replace(NEW, source=replace(SOURCE, changed_again=2)), None)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"tests": {}}, False),
        ({}, True),
        ({"tests": {}, "source": replace(SOURCE, left={"safe": 1})}, True),
        ({"tests": {}, "source": replace(SOURCE, changed_again=1)}, True),
        ({"tests": {}, "verdicts": {"A": ("ok", "failed")}}, True),
    ],
)
def test_what_is_left_to_repair_is_wrong(change: dict[str, Any], wrong: bool) -> None:
    assert replace(NEW, **change).wrong is wrong


def test_the_figures_are_kept_and_the_release_before_is_found(tmp_path: Path) -> None:
    for release in (OLD, NEW, replace(OLD, versions={"transformers": "5.9.0"})):
        assert read(write(release, tmp_path)) == release
    (tmp_path / "guard.json").write_text("{}")
    assert before(Version("5.24.0"), tmp_path) == OLD
    assert before(Version("5.9.0"), tmp_path) is None


def test_the_verdicts_are_those_of_the_reports() -> None:
    fault = Fault(FaultKind.NOT_RECOMPUTED, ("layers.0",), {})
    right = ModeReport("reentrant", (), {"run": "ok"})
    wrong = replace(right, faults=(fault,))
    reports = [Report("A", modes=(right,), repair=Repair((right,))), Report("B", modes=(wrong,)), Report("C")]
    assert verdicts_of(reports) == {
        "A": ("ok", "ok"),
        "B": ("failed", "not repaired"),
        "C": ("not built", "not repaired"),
    }
    assert levels_of(reports) == {"B": ("recompute",)}


def test_the_figures_that_are_kept_can_be_read() -> None:
    for file in PAGES.glob("[0-9]*.json"):
        assert str(read(file).version) == file.stem
        assert file.with_suffix(".md").exists()
