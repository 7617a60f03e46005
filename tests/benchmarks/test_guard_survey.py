"""The guard's survey: its figures count what the file holds, and the page is made from the figures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import guard_survey, guard_survey_report
from benchmarks.guard_survey_report import PAGE, Comparison, figures_of, page, read_guard, write_guard

VERSIONS = {"torch": "2.13.0", "transformers": "5.23.0"}


def examined(name: str, comparison: Comparison, **statuses: int) -> dict[str, Any]:
    mode = {
        "comparison": comparison,
        "statuses": statuses or {"proved": 2},
        "verify": ["a.weight"],
        "guard": ["b.weight"],
        "detail": [],
    }
    return {"class": name, "modes": {"non_reentrant": {"comparison": Comparison.SAME}, "reentrant": mode}}


ROWS = [
    examined("Right", Comparison.SAME),
    examined("Alarm", Comparison.ONLY_GUARD, wrong=1),
    examined("Missed", Comparison.ONLY_VERIFY),
    examined("Unreached", Comparison.NOT_PROVED, **{"proved": 1, "no gradient reached it": 2}),
    {"class": "Refusing", "problem": "ValueError: it does not support activation checkpointing"},
]


def test_classes_blocks_and_problems_are_counted() -> None:
    figures = figures_of(ROWS, VERSIONS)
    assert (figures.classes, figures.problems) == (5, {"ValueError": 1})
    assert figures.counts[Comparison.SAME] == {"non_reentrant": 4, "reentrant": 1}
    assert figures.counts[Comparison.ONLY_GUARD]["reentrant"] == 1
    assert figures.unproved == {"no gradient reached it": 2}
    assert [row.model for row in figures.rows] == ["Alarm", "Missed"]


def test_of_a_class_that_was_examined_twice_the_later_result_counts() -> None:
    figures = figures_of([*ROWS, examined("Alarm", Comparison.SAME)], VERSIONS)
    assert figures.classes == 5
    assert not any(figures.counts[Comparison.ONLY_GUARD].values())


def test_a_disagreement_is_on_the_page_with_what_names_it() -> None:
    text = page(figures_of(ROWS, VERSIONS))
    assert "| `Alarm` | reentrant | guard | wrong: 1 | `b.weight` |" in text
    assert "| `Missed` | reentrant | verify | proved: 2 | `a.weight` |" in text


def test_without_disagreements_there_is_no_table_of_them() -> None:
    assert "disagree" not in page(figures_of(ROWS[:1], VERSIONS))


def test_figures_are_read_as_they_were_written(tmp_path: Path) -> None:
    figures = figures_of(ROWS, VERSIONS)
    write_guard(figures, tmp_path / "guard.json")
    assert read_guard(tmp_path / "guard.json") == figures


def test_the_command_writes_the_page_of_the_whole_file_and_fails_with_a_disagreement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "survey.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    monkeypatch.setattr(guard_survey_report, "FIGURES", tmp_path / "guard.json")
    monkeypatch.setattr(guard_survey, "PAGE", tmp_path / "guard.md")
    monkeypatch.setattr(guard_survey, "survey", lambda *_: None)
    monkeypatch.setattr(guard_survey, "version", VERSIONS.__getitem__)
    monkeypatch.setattr(sys, "argv", ["guard_survey", str(file), "Right", "--page"])
    assert guard_survey.main() == 1
    assert (tmp_path / "guard.md").read_text(encoding="utf-8") == page(figures_of(ROWS, VERSIONS))


def test_the_page_in_the_repository_is_made_from_its_figures() -> None:
    figures = read_guard()
    assert PAGE.read_text(encoding="utf-8") == page(figures)
    alarms = {row.model for row in figures.rows if row.comparison is Comparison.ONLY_GUARD}
    assert alarms == {"Gemma4UnifiedAssistantForCausalLM"}  # its blocks put new tensors into a dictionary
