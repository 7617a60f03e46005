"""The benchmark of averaged gradients: two real ranks are measured, each target can be missed, the json has it all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks import sync_gradients
from benchmarks.figures import Target
from benchmarks.sync_gradients import LOOP, OURS, PARTS, Cost, Part, figures, main

pytestmark = pytest.mark.torch

SMALL, _, WEIGHED = PARTS
TINY = (Part("9 of 2x2", 9, (2, 2), collectives=Target(5.0)), Part("3 of 4x4", 3, (4, 4), weighed=True))


def verdicts(part: Part, ours: Cost, difference: float = 0.0) -> dict[str, str]:
    loop = Cost((2.0, 1.0, 3.0), 500, 10**6)
    return {figure.name: figure.verdict for figure in figures(part, {LOOP: loop, OURS: ours}, difference)}


def test_every_target_can_be_missed() -> None:
    good = Cost((0.2, 0.1, 0.3), 5, 10**6)
    kept = verdicts(SMALL, good)
    assert {verdict for verdict in kept.values() if verdict} == {"ok"}
    slower, more = replace(good, seconds=(0.21, 0.11, 0.29)), replace(good, collectives=6)
    name = SMALL.name
    assert verdicts(SMALL, slower) == {**kept, f"{name}: {LOOP} / {OURS}": "missed"}
    assert verdicts(SMALL, more) == {**kept, f"{name}: collectives, {OURS}": "missed"}
    assert verdicts(SMALL, good, 1e-3) == {**kept, f"{name}: largest difference between the two": "missed"}


def test_memory_has_a_target_of_its_own() -> None:
    name = f"{WEIGHED.name}: extra memory, {OURS}"
    assert verdicts(WEIGHED, Cost((1.0,), 5, 80 * 10**6))[name] == "ok"
    assert verdicts(WEIGHED, Cost((1.0,), 5, 81 * 10**6))[name] == "missed"


def test_two_ranks_are_measured_and_the_json_has_every_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_gradients, "PARTS", TINY)
    target = tmp_path / "new" / "sync_gradients.json"
    assert main(["--rounds", "3", "--out", str(target)]) == 0
    written_figures = json.loads(target.read_text(encoding="utf-8"))["figures"]
    assert written_figures[f"9 of 2x2: collectives, {LOOP}"]["values"] == [9.0]
    assert written_figures[f"9 of 2x2: collectives, {OURS}"]["values"] == [3.0]
    assert len(written_figures[f"9 of 2x2: {OURS}"]["values"]) == 3
    assert written_figures["9 of 2x2: largest difference between the two"]["verdict"] == "ok"
    assert written_figures[f"3 of 4x4: extra memory, {OURS}"]["values"][0] >= 0


def test_a_missed_target_and_a_file_that_cannot_be_written_show_in_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_gradients, "PARTS", (SMALL,))
    monkeypatch.setattr(sync_gradients, "measure", lambda *_: ({way: Cost((1.0,), 9, 0) for way in (LOOP, OURS)}, 0.0))
    assert main(["--out", str(tmp_path / "sync_gradients.json")]) == 1
    (tmp_path / "file").touch()
    assert main(["--out", str(tmp_path / "file" / "sync_gradients.json")]) == 2
