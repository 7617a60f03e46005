"""The survey of other libraries' models tells what is found, what is wrong, and what keeps more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch import Tensor, nn

from benchmarks.stacks import __main__ as command
from benchmarks.stacks import report
from benchmarks.stacks.case import Case
from benchmarks.stacks.measure import measure
from benchmarks.stacks.report import PAGE, Memory, Row, Stacks, page, read_stacks, write_stacks
from ckpt_surgery.runtime.checkpoint.recompute import Computation
from ckpt_surgery.runtime.surgery.surgery import Surgery
from tests.zoo.stack_toys import FlaggedStage, SwitchableChain, values

pytestmark = pytest.mark.torch


def toy(model: nn.Module | None = None) -> Case:
    made = model or SwitchableChain(stage=FlaggedStage())
    return Case("toys", "Chain", lambda: (made, (values(),)))


def test_a_healthy_model_has_its_blocks_and_keeps_what_its_own_switch_keeps() -> None:
    row = measure(toy())
    assert row.blocks == {"FeedBlock": 6}
    assert row.verdicts == {"non_reentrant": ""}
    assert row.without is not None
    assert row.wrapped is not None
    assert row.wrapped.peak < row.without.peak
    assert (row.wrong, row.undone, row.problem) == (False, True, "")
    assert not row.keeps_more


def test_wrong_gradients_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Computation.__call__

    def wrong(computation: Computation, *given: Tensor) -> Any:
        result = run(computation, *given)
        return None if result is None else result * 1.5

    monkeypatch.setattr(Computation, "__call__", wrong)
    row = measure(toy())
    assert "expected equal gradients" in row.verdicts["non_reentrant"]
    assert row.wrong


def test_an_undo_that_leaves_something_behind_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    undo = Surgery.undo

    def forgetful(surgery: Surgery) -> None:
        undo(surgery)
        vars(surgery.model)["left"] = True

    monkeypatch.setattr(Surgery, "undo", forgetful)
    row = measure(toy())
    assert not row.undone
    assert row.wrong


def test_a_model_without_blocks_says_why() -> None:
    row = measure(toy(nn.Sequential(nn.Linear(4, 4), nn.ReLU())))
    assert "single layers" in row.problem
    assert not row.wrong


def test_a_higher_peak_than_the_librarys_own_is_told() -> None:
    row = Row("timm", "ViT", "tiny", library_switch=Memory(10, 100), wrapped=Memory(10, 101), undone=True)
    assert row.keeps_more
    assert not Row("timm", "ViT", "tiny", library_switch=Memory(10, 100), wrapped=Memory(10, 100)).keeps_more


def test_the_page_shows_what_is_wrong() -> None:
    bad = Row(
        "timm",
        "ViT",
        "tiny",
        blocks={"Block": 4},
        verdicts={"non_reentrant": "", "reentrant": "gradients lost"},
        without=Memory(100, 200),
        wrapped=Memory(10, 50),
    )
    text = page(Stacks({"timm": "1.0"}, [bad, Row("timm", "VGG", "tiny", problem="no blocks")]))
    assert "| ViT | tiny | 4 `Block` | equal | gradients lost | 10 % | 25 % | has none | **not exact** |" in text
    assert "| timm: VGG | no blocks |" in text
    assert "Of 2 models, `wrap_blocks` found blocks in 1. 1 had wrong gradients" in text


def test_the_page_is_made_from_its_figures_and_every_goal_is_met() -> None:
    stacks = read_stacks()
    assert PAGE.read_text(encoding="utf-8") == page(stacks)
    assert [row for row in stacks.rows if row.wrong or row.keeps_more] == []
    assert sum(not row.problem for row in stacks.rows) > 0.9 * len(stacks.rows)
    assert {row.library for row in stacks.rows} == set(stacks.versions) == set(command.DISTRIBUTIONS)


def test_a_run_of_one_library_replaces_its_rows_and_ends_with_1_where_something_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = tmp_path / "stacks.json"
    write_stacks(Stacks({"timm": "1.0", "torch": "1"}, [Row("timm", "A", "tiny"), Row("torch", "B", "tiny")]), figures)
    monkeypatch.setattr(command, "FIGURES", figures)
    monkeypatch.setattr(command, "read_stacks", lambda: read_stacks(figures))
    monkeypatch.setattr(command, "write_stacks", lambda stacks: write_stacks(stacks, figures))
    monkeypatch.setattr(command, "PAGE", tmp_path / "stacks.md")
    monkeypatch.setattr(command, "measured", lambda cases: [Row("torch", "C", "tiny")])
    assert command.main(["torch"]) == 1
    assert [row.model for row in read_stacks(figures).rows] == ["C", "A"]
    assert (tmp_path / "stacks.md").read_text(encoding="utf-8").startswith(report.NOTICE)


@pytest.mark.parametrize(
    ("name", "message"),
    [("nothing", "is none of torch, "), ("x-transformers", "is not installed: run")],
)
def test_a_library_that_is_not_there_is_named(name: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([name]) == 2
    assert message in capsys.readouterr().err
