"""The table of releases: the page follows from its figures and has every class and release; each word is earned."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import release_table
from benchmarks.release_table import CLASSES, PAGE, RELEASES, Outcome, failed, outcome_of, reason_of
from ckpt_surgery.measure.kinds import CauseKind, FaultKind
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import Fault, FaultCause, ModeReport, Repair
from tests.codemods.snippets import PLAIN
from tests.codemods.tools import FOO, tree

ROOT = Path(__file__).parents[2]
FAULT = Fault(FaultKind.NOT_RECOMPUTED, ("layers.0",), {}, FaultCause(CauseKind.PLAIN_BLOCK, {"block": "Block"}))
WHY = f"{FAULT.cause} CKPT001 (reentrant)"
RIGHT = ModeReport("reentrant", (), {"run": "ok"})
WRONG = replace(RIGHT, faults=(FAULT,))
NO_BLOCKS = Repair(problem="It has no blocks.", refused=True)
REFUSING = replace(RIGHT, refused="A list has a gradient.")


def report(before: ModeReport | None, after: ModeReport | None, **more: Any) -> Report:
    """Report a class with the status `before`, and `after` after `wrap_blocks`; None where there is no model."""
    repair = None if after is None else Repair((after,))
    return Report("A", modes=() if before is None else (before,), repair=repair, **more)


def test_the_page_has_every_class_and_release_and_nothing_stays_wrong() -> None:
    columns = PAGE.read()
    assert len(CLASSES) == len(set(CLASSES)) == 40
    assert list(columns) == list(RELEASES)
    for name in CLASSES:
        assert any(name in column["outcomes"] for column in columns.values()), name
    for release, column in columns.items():
        assert not failed(column)
        assert column["versions"]["transformers"] == release
        assert column["before"]["safe"] > column["after"].get("safe", 0) == 0


def test_the_sessions_are_the_columns_and_their_constraints_exist() -> None:
    noxfile = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    (value,) = (
        node.value
        for node in noxfile.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "RELEASES"
    )
    sessions = ast.literal_eval(value)
    assert tuple(sessions) == RELEASES
    assert [name for name in sessions.values() if not (ROOT / f"constraints/{name}.txt").is_file()] == []


def test_the_oldest_release_is_the_one_that_is_promised() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (oldest,) = re.findall(r'"transformers>=([\d.]+)"', text)
    assert RELEASES[0] == oldest


@pytest.mark.parametrize(
    ("examined", "outcome", "reason"),
    [
        pytest.param(report(RIGHT, RIGHT), "ok", "", id="right before and after"),
        pytest.param(report(WRONG, RIGHT), "repaired", WHY, id="repaired"),
        pytest.param(
            report(None, RIGHT, supported=False), "repaired", "It claims no support for checkpointing.", id="no claim"
        ),
        pytest.param(report(WRONG, WRONG), "failed", WHY, id="not repaired"),
        pytest.param(report(RIGHT, WRONG), "failed", WHY, id="broken by us"),
        pytest.param(report(WRONG, REFUSING), "refused", "A list has a gradient.", id="refused"),
        pytest.param(replace(report(WRONG, None), repair=NO_BLOCKS), "refused", "It has no blocks.", id="no blocks"),
        pytest.param(report(None, None, problem="no config"), "not built", "no config", id="not built"),
        pytest.param(report(RIGHT, None), "failed", "it was not tried", id="not tried"),
    ],
)
def test_each_outcome_has_its_reason(examined: Report, outcome: str, reason: str) -> None:
    assert (outcome_of(examined), reason_of(examined)) == (outcome, reason)


def column(outcomes: dict[str, Outcome], **more: Any) -> dict[str, Any]:
    plain = {"reasons": {}, "files": 0, "before": {}, "after": {}}
    return {"versions": {"torch": "2.13.0", "transformers": "5.0.0"}, "outcomes": outcomes, **plain, **more}


def test_a_failed_class_or_a_safe_finding_that_is_left_fails_the_run() -> None:
    healthy = column({"LlamaForCausalLM": Outcome.REFUSED}, after={"info": 1})
    assert not failed(healthy)
    assert failed({**healthy, "outcomes": {"LlamaForCausalLM": Outcome.FAILED}})
    assert failed({**healthy, "after": {"safe": 1}})


def test_the_models_are_examined_and_a_copy_of_them_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = tree(tmp_path / "package", {FOO: PLAIN.replace("FooLayer", "SwinForImageClassification")}) / "models"
    asked: list[str] = []

    def written(words: list[str], form: str, file: Path) -> str:
        asked.extend(words)
        return json.dumps({"versions": {}, "reports": []})

    monkeypatch.setattr(release_table, "installed_models", lambda: models)
    monkeypatch.setattr(release_table, "written_by_verify", written)
    found = release_table.measure()
    assert asked[:2] == ["SwinForImageClassification", "--levels"]
    assert (found["files"], found["before"], found["after"]) == (1, {"safe": 1}, {})
    assert "GradientCheckpointingLayer" not in (tmp_path / "package" / FOO).read_text(encoding="utf-8")
