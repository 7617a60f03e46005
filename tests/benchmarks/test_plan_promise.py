"""Plans for random budgets keep at most what they promise on real models, and a broken promise is seen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks import plan_promise
from benchmarks.plan_promise import SURVEY, Promise, counts, measure

pytestmark = [pytest.mark.both, pytest.mark.torch]


def test_plans_keep_what_they_promise() -> None:
    # An encoder with a decoder: two stacks. The benchmark has more models, and more plans of each.
    row = measure("T5ForConditionalGeneration", plans=8)
    assert counts([row]) == {Promise.EXACT: 8}
    calls = [each["calls"].get("wrap_blocks", {}) for each in row["plans"]]
    assert any("save" in call for call in calls)
    assert any("offload" in call for call in calls)


def test_a_plan_that_keeps_more_than_it_promised_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan_promise, "kept_by_a_step", lambda *_: 10**9)
    file = tmp_path / "plans.jsonl"  # with the row in it, no process has anything left to examine
    file.write_text(json.dumps({"case": "GPT2LMHeadModel", **measure("GPT2LMHeadModel", plans=1)}))
    assert SURVEY.main([str(file), "GPT2LMHeadModel"]) == 1
    assert "    1 keeps more than was promised" in capsys.readouterr().out
