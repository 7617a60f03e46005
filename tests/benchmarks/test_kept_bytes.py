"""The page of `kept_bytes`: what is counted, and that a step which is not equal is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import kept_bytes_report
from benchmarks.kept_bytes_report import NOT_BUILT, Agreement, figures_of, keep, page, read


def step(agreement: Agreement, **values: Any) -> dict[str, Any]:
    return {"agreement": str(agreement), "kept": 10, "told": 10, "peak": 20, "told_peak": 20, "drawn": 0, **values}


ROWS: list[dict[str, Any]] = [
    {"class": "B", "steps": {"off": step(Agreement.EQUAL), "on": step(Agreement.PEAK_DIFFERS, told_peak=19)}},
    {"class": "A", "steps": {"off": step(Agreement.DRAWN, told=9), "on": step(Agreement.EQUAL)}},
    {"class": "C", "problem": "CannotBuild: no"},
    {"class": "D", "steps": {"off": {"agreement": str(Agreement.NOT_ON_SHAPES), "why": "it reads `values`"}}},
]


def test_steps_are_counted_and_those_that_are_not_equal_are_named() -> None:
    figures = figures_of([{"class": "B", "problem": "before"}, *ROWS], 7)
    assert figures["counts"] == {
        Agreement.EQUAL: 2,
        Agreement.PEAK_DIFFERS: 1,
        Agreement.DRAWN: 1,
        Agreement.NOT_ON_SHAPES: 1,
        NOT_BUILT: 1,
    }
    assert [other["class"] for other in figures["others"]] == ["B", "D"]
    said = page({"5.0": figures})
    assert "5.0: 4 classes of 7, drawn at random" in said
    assert "| `B` | 5.0 | on | kept bytes equal, peak not | kept 10 and 10, peak 20 and 19 |" in said
    assert "it reads" in said
    assert "`A`" not in said


def test_releases_are_kept_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_bytes_report, "FIGURES", tmp_path / "kept_bytes.json")
    keep("4.0", figures_of(ROWS[:1], 1))
    keep("5.0", figures_of(ROWS[1:2], 1))
    keep("4.0", figures_of(ROWS[2:3], 1))
    assert list(read()) == ["5.0", "4.0"]
    assert read()["4.0"]["counts"] == {NOT_BUILT: 1}
    said = page(read())
    assert "| steps | 5.0: 1 class | 4.0: 1 class |" in said
    assert said.endswith("None.\n")
