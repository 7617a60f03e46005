"""The guard's survey: its figures count what the file holds, and the page is made from the figures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from benchmarks import guard_survey, guard_survey_report
from benchmarks.guard_survey_report import PAGE, Comparison, figures_of, page, read_guard, write_guard
from ckpt_surgery.guarding.proof import ProofStatus

VERSIONS = {"torch": "2.13.0", "transformers": "5.23.0"}


def examined(name: str, comparison: Comparison, **statuses: int) -> dict[str, Any]:
    mode = {
        "comparison": comparison,
        "statuses": statuses or {"proved": 2},
        "verify": ["a.weight"],
        "guard": ["b.weight"],
        "broken": 3,
        "named": 1,
        "missed": ["a.weight", "c.weight"],
        "detail": [],
    }
    return {"class": name, "modes": {"non_reentrant": {"comparison": Comparison.SAME}, "reentrant": mode}}


ROWS = [
    examined("Right", Comparison.SAME),
    examined("Alarm", Comparison.ONLY_GUARD, wrong=1),
    examined("Missed", Comparison.ONLY_VERIFY),
    examined("Unvouched", Comparison.NOT_VOUCHED, **{"proved": 1, "not seen to run": 1}),
    examined("Unreached", Comparison.NOT_PROVED, **{"proved": 1, "no gradient reached it": 2}),
    {"class": "Refusing", "problem": "ValueError: it does not support activation checkpointing"},
]


def test_classes_blocks_and_problems_are_counted() -> None:
    figures = figures_of(ROWS, VERSIONS, 9)
    assert (figures.classes, figures.known, figures.problems) == (6, 9, {"ValueError": 1})
    assert figures.counts[Comparison.SAME] == {"non_reentrant": 5, "reentrant": 1}
    assert figures.counts[Comparison.ONLY_GUARD]["reentrant"] == 1
    assert figures.unproved == {"no gradient reached it": 2}
    assert [row.model for row in figures.rows] == ["Alarm", "Missed", "Unvouched"]


def test_of_a_class_that_was_examined_twice_the_later_result_counts() -> None:
    figures = figures_of([*ROWS, examined("Alarm", Comparison.SAME)], VERSIONS, 9)
    assert figures.classes == 6
    assert not any(figures.counts[Comparison.ONLY_GUARD].values())


def test_a_disagreement_is_on_the_page_with_what_names_it() -> None:
    text = page(figures_of(ROWS, VERSIONS, 9))
    assert "| `Alarm` | reentrant | guard | wrong: 1 | `b.weight` |" in text
    assert "| `Missed` | reentrant | verify | proved: 2 | `a.weight` |" in text


def test_of_a_class_that_is_broken_in_both_the_page_counts_what_the_guard_names() -> None:
    text = page(figures_of([examined("Broken", Comparison.BOTH_BROKEN)], VERSIONS, 9))
    assert "| `Broken` | reentrant | 1 of 3 | `b.weight` | `a.weight` and `c.weight` |" in text


def test_what_the_guard_does_not_prove_is_no_disagreement() -> None:
    text = page(figures_of([ROWS[3]], VERSIONS, 9))
    assert "disagree" not in text
    assert "| `Unvouched` | reentrant | verify | proved: 1, not seen to run: 1 | `a.weight` |" in text
    assert "1 of 9 classes, a random sample" in text
    assert "random sample" not in page(figures_of([ROWS[3]], VERSIONS, 1))


@pytest.mark.parametrize(
    ("broken", "changed", "statuses", "comparison"),
    [
        (set(), set(), {"proved": 2}, Comparison.SAME),
        (set(), set(), {"proved": 1, "not seen to run": 1}, Comparison.NOT_PROVED),
        ({"a.weight"}, set(), {"proved": 2}, Comparison.ONLY_VERIFY),
        ({"a.weight"}, set(), {"proved": 1, "not seen to run": 1}, Comparison.NOT_VOUCHED),
        ({"b.weight"}, set(), {"proved": 1, "wrong": 1}, Comparison.BOTH_BROKEN),
        (set(), set(), {"proved": 1, "wrong": 1}, Comparison.ONLY_GUARD),
        (set(), {"b.mean"}, {"proved": 1, ProofStatus.WRITTEN_TWICE: 1}, Comparison.BOTH_BROKEN),
        (set(), {"a.mean", "b.mean"}, {"proved": 1, ProofStatus.WRITTEN_TWICE: 1}, Comparison.ONLY_VERIFY),
        (set(), {"a.mean"}, {"proved": 2}, Comparison.ONLY_VERIFY),
        (set(), {"a.mean"}, {"proved": 1, "not seen to run": 1}, Comparison.NOT_VOUCHED),
        (set(), set(), {"proved": 1, ProofStatus.WRITTEN_TWICE: 1}, Comparison.ONLY_GUARD),
        ({"b.weight"}, {"a.mean"}, {"proved": 1, "wrong": 1}, Comparison.ONLY_VERIFY),
    ],
)
def test_a_verdict_and_proofs_are_compared(
    broken: set[str], changed: set[str], statuses: dict[str, int], comparison: Comparison
) -> None:
    wrong: set[str] = {"b.weight"} if "wrong" in statuses else set()
    written: set[str] = {"b.mean"} if ProofStatus.WRITTEN_TWICE in statuses else set()
    seen: dict[str, Any] = {"statuses": statuses, "report": SimpleNamespace(blocks=()), "attributes": []}
    made = guard_survey._compared(
        broken, changed, wrong=wrong, blocks={"b"} if wrong else set(), written=written, **seen
    )
    assert made["comparison"] is comparison
    assert made["named"] == len((broken | changed) & (wrong | written))
    assert made["missed"] == sorted((broken | changed) - wrong - written)


def test_without_disagreements_there_is_no_table_of_them() -> None:
    assert "disagree" not in page(figures_of(ROWS[:1], VERSIONS, 1))


def test_figures_are_read_as_they_were_written(tmp_path: Path) -> None:
    figures = figures_of(ROWS, VERSIONS, 9)
    write_guard(figures, tmp_path / "guard.json")
    assert read_guard(tmp_path / "guard.json") == figures


def test_the_command_writes_the_page_of_the_whole_file_and_fails_with_a_disagreement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "survey.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    monkeypatch.setattr(guard_survey_report, "FIGURES", tmp_path / "guard.json")
    monkeypatch.setattr(guard_survey, "PAGE", tmp_path / "guard.md")
    monkeypatch.setattr(guard_survey, "survey", lambda *_, **__: None)
    monkeypatch.setattr(guard_survey, "version", VERSIONS.__getitem__)
    monkeypatch.setattr(sys, "argv", ["guard_survey", str(file), "Right", "--page"])
    assert guard_survey.main() == 1
    known = read_guard(tmp_path / "guard.json").known
    assert (tmp_path / "guard.md").read_text(encoding="utf-8") == page(figures_of(ROWS, VERSIONS, known))


def test_the_page_in_the_repository_is_made_from_its_figures() -> None:
    figures = read_guard()
    assert PAGE.read_text(encoding="utf-8") == page(figures)
    assert not any(figures.counts[Comparison.ONLY_GUARD].values())
