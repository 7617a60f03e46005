"""The table of releases: the page is what its figures say, and holds every class and release; each word is earned."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import release_table_report
from benchmarks.release_table_report import (
    CLASSES,
    PAGE,
    RELEASES,
    Column,
    Outcome,
    label_order,
    outcome_of,
    page,
    read_columns,
    reason_of,
    write_columns,
)
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
    """A class that is as `before` says, and after `wrap_blocks` as `after` says; None where there is no model."""
    repair = None if after is None else Repair((after,))
    return Report("A", modes=() if before is None else (before,), repair=repair, **more)


def rows(text: str) -> dict[str, list[str]]:
    """The rows of all tables of a page, by their first cell."""
    cells = [re.split(r" \| ", line.strip("| ")) for line in text.splitlines() if line.startswith("| ")]
    return {first: rest for first, *rest in cells}


def test_the_page_is_made_from_its_figures() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(read_columns())


def test_the_page_has_every_class_and_every_release() -> None:
    assert len(CLASSES) == len(set(CLASSES)) == 40
    assert f"| class | {' | '.join(RELEASES)} |" in PAGE.read_text(encoding="utf-8")
    assert list(read_columns()) == list(RELEASES)
    for name in CLASSES:
        assert any(name in column.outcomes for column in read_columns().values()), name


def test_no_class_stays_wrong_in_any_release_and_no_safe_finding_is_left() -> None:
    assert [release for release, column in read_columns().items() if column.failed] == []
    for release, column in read_columns().items():
        assert column.versions["transformers"] == release
        assert column.before["safe"] > column.after.get("safe", 0) == 0


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


def column(outcomes: dict[str, Outcome], **more: Any) -> Column:
    return Column({"torch": "2.13.0", "transformers": "5.0.0"}, outcomes, **more)


def test_the_page_says_what_became_of_each_class_and_why() -> None:
    llama, mixtral, router = "LlamaForCausalLM", "MixtralForCausalLM", "MixtralForCausalLM (router loss)"
    why = {llama: "It calls `f` by keyword."}
    findings: dict[str, Any] = {"files": 1200, "before": {"safe": 7, "info": 2}, "after": {"info": 3}}
    columns = {
        "4.52.4": column({llama: Outcome.REPAIRED, mixtral: Outcome.OK}, reasons=why, **findings),
        "5.0.0": column({llama: Outcome.REPAIRED, router: Outcome.FAILED, mixtral: Outcome.OK}, reasons=why),
    }
    table = rows(page(columns))
    assert table[f"`{llama}`"] == ["4.52.4, 5.0.0", "repaired", "It calls `f` by keyword."]
    assert table[f"`{mixtral}`"] == ["ok", "ok"]
    assert table[f"`{router}`"] == ["absent", "failed"]
    assert (table["**ok**"], table["**repaired**"], table["**absent**"]) == (["1", "1"], ["1", "1"], ["1", "0"])
    assert table["files"] == ["1,200", "0"]
    assert (table["**findings**"], table["safe findings"]) == (["9 → 3", "0 → 0"], ["7 → 0", "0 → 0"])


def test_a_failed_class_or_a_safe_finding_that_is_left_fails_the_run() -> None:
    healthy = column({"LlamaForCausalLM": Outcome.REFUSED}, after={"info": 1})
    assert not healthy.failed
    assert replace(healthy, outcomes={"LlamaForCausalLM": Outcome.FAILED}).failed
    assert replace(healthy, after={"safe": 1}).failed


def test_figures_are_read_as_they_were_written_in_the_order_of_the_releases(tmp_path: Path) -> None:
    columns = {release: column({"LlamaForCausalLM": Outcome.OK}, files=3) for release in reversed(RELEASES)}
    write_columns(columns, tmp_path / "releases.json")
    assert read_columns(tmp_path / "releases.json") == columns
    assert list(json.loads((tmp_path / "releases.json").read_text())) == list(RELEASES)


def test_a_variant_stands_behind_its_class() -> None:
    found = [
        "MixtralForCausalLM (router loss)",
        "T5ForConditionalGeneration",
        "MixtralForCausalLM",
        "LlamaForCausalLM",
    ]
    assert label_order(found) == [found[3], found[2], found[0], found[1]]


@pytest.mark.torch
def test_a_release_without_a_column_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import release_table

    monkeypatch.setattr(release_table, "version", lambda package: "4.0.0")
    assert release_table.main([]) == 2
    assert capsys.readouterr().err.startswith("release_table: transformers 4.0.0 is none of 4.52.4, ")


def test_a_run_replaces_its_column_and_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import release_table

    figures = tmp_path / "releases.json"
    old = {release: column({"LlamaForCausalLM": Outcome.FAILED}) for release in RELEASES[:2]}
    write_columns(old, figures)
    new = column({"LlamaForCausalLM": Outcome.OK})
    for module in (release_table, release_table_report):
        monkeypatch.setattr(module, "FIGURES", figures)
    monkeypatch.setattr(release_table, "PAGE", tmp_path / "releases.md")
    monkeypatch.setattr(release_table, "version", lambda package: RELEASES[1])
    monkeypatch.setattr(release_table, "measure", lambda jobs: new)
    assert release_table.main([]) == 0
    assert read_columns(figures) == {**old, RELEASES[1]: new}
    assert rows((tmp_path / "releases.md").read_text(encoding="utf-8"))["`LlamaForCausalLM`"] == ["failed", "ok"]
    assert "1 ok" in capsys.readouterr().out


def test_a_tree_is_copied_repaired_and_checked_again(tmp_path: Path) -> None:
    from benchmarks.release_table import repair_source

    models = tree(tmp_path / "package", PLAIN) / "models"
    figures = repair_source(models, jobs=1)
    assert figures == {"files": 1, "before": {"safe": 1}, "after": {}}
    assert (tmp_path / "package" / FOO).read_text(encoding="utf-8") == PLAIN, "the original is left alone"


def test_the_classes_of_a_release_are_read_from_its_modeling_files(tmp_path: Path) -> None:
    from benchmarks.release_table import defined_in

    models = tree(tmp_path, {FOO: PLAIN, "models/foo/configuration_foo.py": "class FooConfig(Config):\n    pass\n"})
    assert "FooLayer" in defined_in(models)
    assert "FooConfig" not in defined_in(models)
