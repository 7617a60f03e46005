"""The guard's survey counts its rows and shows where guard and verify disagree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from benchmarks import survey
from benchmarks.guard_survey import PAGE, Comparison, Watched, compared, conclude, figures_of, measure
from ckpt_surgery.guarding.proof import ProofStatus


def examined(name: str, comparison: Comparison, **statuses: int) -> dict[str, Any]:
    mode = {
        "comparison": comparison,
        "statuses": statuses or {"proved": 2},
        "verify": ["a.weight"],
        "guard": ["b.weight"],
        "broken": 3,
        "named": 1,
        "missed": ["a.weight", "c.weight"],
    }
    return {"case": name, "modes": {"non_reentrant": {"comparison": Comparison.SAME}, "reentrant": mode}}


UNVOUCHED = examined("Unvouched", Comparison.NOT_VOUCHED, **{"proved": 1, "not seen to run": 1})
ROWS = [
    examined("Right", Comparison.SAME),
    examined("Alarm", Comparison.ONLY_GUARD, wrong=1),
    examined("Missed", Comparison.ONLY_VERIFY),
    UNVOUCHED,
    examined("Unreached", Comparison.NOT_PROVED, **{"proved": 1, "no gradient reached it": 2}),
    {"case": "Refusing", "problem": "ValueError: it does not support activation checkpointing"},
]


def test_classes_blocks_and_problems_are_counted() -> None:
    figures = figures_of(ROWS, 9)
    assert (figures["classes"], figures["known"], figures["problems"]) == (6, 9, {"ValueError": 1})
    assert figures["counts"][Comparison.SAME] == {"non_reentrant": 5, "reentrant": 1}
    assert figures["counts"][Comparison.ONLY_GUARD]["reentrant"] == 1
    assert figures["unproved"] == {"no gradient reached it": 2}
    assert [row["model"] for row in figures["rows"]] == ["Alarm", "Missed", "Unvouched"]


TWICE = str(ProofStatus.WRITTEN_TWICE)
PROVED, UNSEEN = {"proved": 2}, {"proved": 1, "not seen to run": 1}


@pytest.mark.parametrize(
    ("broken", "changed", "statuses", "comparison"),
    [
        (set(), set(), PROVED, Comparison.SAME),
        (set(), set(), UNSEEN, Comparison.NOT_PROVED),
        ({"a.weight"}, set(), PROVED, Comparison.ONLY_VERIFY),
        ({"b.weight"}, set(), {"wrong": 1}, Comparison.BOTH_BROKEN),
        (set(), set(), {"wrong": 1}, Comparison.ONLY_GUARD),
        (set(), {"b.mean"}, {TWICE: 1}, Comparison.BOTH_BROKEN),
        (set(), {"a.mean"}, UNSEEN, Comparison.NOT_VOUCHED),
        (set(), set(), {TWICE: 1}, Comparison.ONLY_GUARD),
        ({"b.weight"}, {"a.mean"}, {"wrong": 1}, Comparison.ONLY_VERIFY),
    ],
)
def test_a_verdict_and_proofs_are_compared(
    broken: set[str], changed: set[str], statuses: dict[str, int], comparison: Comparison
) -> None:
    wrong = frozenset({"b.weight"} if "wrong" in statuses else ())
    written = frozenset({"b.mean"} if TWICE in statuses else ())
    made = compared(broken, changed, Watched(statuses, wrong, frozenset({"b"} if wrong else ()), written))
    assert made["comparison"] is comparison
    assert made["named"] == len((broken | changed) & (wrong | written))
    assert made["missed"] == sorted((broken | changed) - wrong - written)


@pytest.mark.torch
def test_written_statistics_of_a_release_are_a_fault_in_both() -> None:
    modes = measure("MobileViTV2Model")["modes"]
    assert {mode["comparison"] for mode in modes.values()} == {Comparison.BOTH_BROKEN}


def test_a_disagreement_is_a_failure_and_the_page_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "COVERAGE", tmp_path)
    assert conclude(ROWS, 9, True)
    assert PAGE.markdown.read_text(encoding="utf-8") == PAGE.text(figures_of(ROWS, 9))
    assert not conclude([ROWS[0], UNVOUCHED], 9, False)


def test_the_committed_survey_has_no_false_alarm() -> None:
    assert not any(PAGE.read()["counts"][Comparison.ONLY_GUARD].values())
