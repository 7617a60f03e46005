"""The table of versions: one row for each environment, which lists what fails and is replaced by the next run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from benchmarks import survey
from benchmarks.versions import CLASSES, DOORS, PAGE, cases, conclude, key
from ckpt_surgery.optional import TESTED

RIGHT: dict[str, Any] = {
    "versions": {"python": "3.11.7", "torch": "2.11.0+cu130", "transformers": "5.17.0"},
    "worked": {door: ["LlamaForCausalLM"] for door in DOORS},
    "reasons": {},
    "faults": 43,
    "missed": [],
}
WRONG = {
    **RIGHT,
    "versions": {**RIGHT["versions"], "torch": "2.8.0"},
    "worked": {**RIGHT["worked"], "save": []},
    "reasons": {"save": {"LlamaForCausalLM": "AssertionError: no"}},
    "missed": ["test_a[Llama]"],
}


def test_a_row_says_what_worked_and_the_page_what_did_not() -> None:
    text = PAGE.text({"rows": [RIGHT, WRONG]})
    lines = [line for line in text.splitlines() if line.startswith("| 2.")]
    assert [line.split(" | ")[:4] for line in lines] == [
        ["| 2.8.0", "5.17.0", "3.11.7", "42 of 43"],
        ["| 2.11.0", "5.17.0", "3.11.7", "43 of 43"],
    ]
    assert lines[1].count("1 of 1") == len(DOORS)
    assert lines[0].count("0 of 1") == 1
    assert "- torch 2.8.0, transformers 5.17.0: `test_a[Llama]` fails." in text
    assert "- torch 2.8.0, transformers 5.17.0: save of `LlamaForCausalLM`: AssertionError: no" in text
    assert "Nothing that is known." in PAGE.text({"rows": [RIGHT]})


def test_a_later_try_of_the_same_versions_replaces_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "COVERAGE", tmp_path)
    PAGE.write({"rows": [RIGHT]})
    tried = [{"case": f"{door}: LlamaForCausalLM"} for door in DOORS]
    assert conclude([*tried, {"case": "planted", "faults": 9, "missed": ["a"]}], 99, True)
    assert conclude([{"case": "save: LlamaForCausalLM", "problem": "AssertionError: no"}], 99, True)
    assert not conclude(tried, 99, False)
    right, later = PAGE.read()["rows"]
    assert right == RIGHT
    assert (later["worked"], later["reasons"]) == ({"save": []}, WRONG["reasons"])


@pytest.mark.torch
def test_every_door_is_tried() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from benchmarks.survey import tiny

    assert len(set(cases())) == len(cases())
    for door in DOORS:
        if door != "run":
            made = tiny(CLASSES[0])
            DOORS[door].trial(made.model, made.inputs)


@pytest.mark.torch
def test_what_a_door_breaks_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from benchmarks.survey import tiny
    from ckpt_surgery.runtime.checkpoint.recompute import Computation

    run = Computation.__call__

    def wrong(computation: Computation, *given: object) -> object:
        result = run(computation, *given)  # type: ignore[arg-type]
        return None if result is None else result * 1.5

    monkeypatch.setattr(Computation, "__call__", wrong)
    made = tiny(CLASSES[0])
    with pytest.raises(AssertionError, match="apart"):
        DOORS["wrap"].trial(made.model, made.inputs)


def test_no_release_of_torch_was_tried_that_is_not_said_to_be_tested() -> None:
    oldest, newest = map(Version, TESTED["torch"])
    rows = PAGE.read()["rows"]
    assert all(oldest <= key(row)[0] < Version(f"{newest.major}.{newest.minor + 1}") for row in rows)
