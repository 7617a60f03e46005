"""The page of `kept_bytes`: its counts, and the names of steps with unequal results."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.kept_bytes import NOT_BUILT, PAGE, Agreement, conclude, counts, figures_of, measure


def step(agreement: Agreement, **values: Any) -> dict[str, Any]:
    return {"agreement": str(agreement), "kept": 10, "told": 10, "peak": 20, "told_peak": 20, "drawn": 0, **values}


ROWS: list[dict[str, Any]] = [
    {"case": "B", "steps": {"off": step(Agreement.EQUAL), "on": step(Agreement.PEAK_DIFFERS, told_peak=19)}},
    {"case": "A", "steps": {"off": step(Agreement.DRAWN, told=9), "on": step(Agreement.EQUAL)}},
    {"case": "C", "problem": "CannotBuild: no"},
    {"case": "D", "steps": {"off": {"agreement": str(Agreement.NOT_ON_SHAPES), "why": "it reads `values`"}}},
]


def test_steps_are_counted_and_those_that_are_not_equal_are_named() -> None:
    figures = figures_of(ROWS, 7)
    assert figures["counts"] == {
        Agreement.EQUAL: 2,
        Agreement.PEAK_DIFFERS: 1,
        Agreement.DRAWN: 1,
        Agreement.NOT_ON_SHAPES: 1,
        NOT_BUILT: 1,
    }
    assert [other["class"] for other in figures["others"]] == ["B", "D"]
    said = PAGE.text({"5.0": figures})
    assert "5.0: 4 classes of 7, drawn at random" in said
    assert "| `B` | 5.0 | on | kept bytes equal, peak not | kept 10 and 10, peak 20 and 19 |" in said
    assert "it reads" in said
    assert "`A`" not in said


CLASSES = {
    "DetrForObjectDetection": False,  # matches boxes in numpy
    "MixtralForCausalLM": True,  # in transformers 4 reads which experts were chosen
    "Qwen2VLForConditionalGeneration": False,  # reads the grid of an image
    "Wav2Vec2Model": False,  # drops layers at random
}
"""Classes by whether their saved bytes may depend on values of their weights."""


@pytest.mark.both
@pytest.mark.torch
@pytest.mark.parametrize("name", CLASSES)
def test_tiny_models_keep_what_explain_says(name: str) -> None:
    pytest.importorskip("transformers")
    steps = measure(name)["steps"]
    allowed = {Agreement.EQUAL, Agreement.DRAWN} if CLASSES[name] else {Agreement.EQUAL}
    assert {steps["off"]["agreement"], steps["on"]["agreement"]} <= allowed, steps


@pytest.mark.both
@pytest.mark.torch
def test_a_step_that_keeps_more_than_reported_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr("benchmarks.kept_bytes.kept_by_a_step", lambda *_: 1)
    row = measure("GPT2Model")
    assert {step["agreement"] for step in row["steps"].values()} == {Agreement.KEPT_DIFFERS}
    assert counts([row, {"problem": "x"}]) == {Agreement.KEPT_DIFFERS: 2, NOT_BUILT: 1}
    assert conclude([{"case": "GPT2Model", **row}], 1, False)
