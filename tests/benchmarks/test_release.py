"""The page of a release compares it with the one before, and lists what the page leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import survey
from benchmarks.release import before, section, wrong

OLD: dict[str, Any] = {
    "versions": {"transformers": "5.23.0"},
    "verdicts": {"A": ["ok", "ok"], "B": ["failed", "ok"], "Gone": ["ok", "ok"]},
    "levels": {"B": ["state"]},
    "classes": 3,
    "names": {"past_key_values": 2, "input_ids": 3},
    "source": None,
    "tests": {},
}
SOURCE = {"files": 10, "found": {"safe": 3, "display": 1}, "left": {"display": 1}, "changed_again": 0}
NEW: dict[str, Any] = {
    "versions": {"transformers": "5.24.0"},
    "verdicts": {
        "A": ["ok", "ok"],
        "B": ["ok", "ok"],
        "New": ["not built", "not repaired"],
        "New (router loss)": ["ok", "ok"],
    },
    "levels": {},
    "classes": 4,
    "names": {"cache": 2, "input_ids": 3},
    "source": SOURCE,
    "tests": {
        "Planted faults": {"passed": 215, "failed": []},
        "Tests that need torch": {"passed": 10, "failed": ["tests/a.py::b"]},
    },
}


def test_a_page_says_what_differs_from_the_release_before() -> None:
    text = section(NEW, OLD)
    assert "2 new classes: `New` and `New (router loss)`. Not built: 1: `New`." in text
    assert "1 class gone: `Gone`." in text
    assert "1 name vanished: `past_key_values`." in text
    assert "| `B` | failed: state | ok | ok | ok |" in text
    assert "`A` |" not in text


@pytest.mark.parametrize(
    ("change", "left"),
    [
        ({"tests": {}}, False),
        ({}, True),
        ({"tests": {}, "source": {**SOURCE, "left": {"safe": 1}}}, True),
        ({"tests": {}, "source": {**SOURCE, "changed_again": 1}}, True),
        ({"tests": {}, "verdicts": {"A": ["ok", "failed"]}}, True),
    ],
)
def test_what_is_left_to_repair_is_wrong(change: dict[str, Any], left: bool) -> None:
    assert wrong({**NEW, **change}) is left


def test_the_figures_are_kept_and_the_release_before_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "COVERAGE", tmp_path)
    for release in (OLD, NEW, {**OLD, "versions": {"transformers": "5.9.0"}}):
        text = json.dumps(release)
        assert json.loads(text) == release
        (tmp_path / f"{release['versions']['transformers']}.json").write_text(text, encoding="utf-8")
    (tmp_path / "guard.json").write_text("{}")
    assert before(NEW) == OLD
    assert before({"versions": {"transformers": "5.9.0"}}) is None


def test_the_newest_page_ends_with_what_its_figures_say() -> None:
    release = json.loads((survey.COVERAGE / "5.24.0.json").read_text(encoding="utf-8"))
    page = (survey.COVERAGE / "5.24.0.md").read_text(encoding="utf-8")
    assert page.endswith(section(release, before(release)))
