"""The survey of other libraries' models reports the blocks found, the faults, and what saves more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch import Tensor, nn

from benchmarks import stacks, survey
from benchmarks.stacks import PAGE, cases, conclude, keeps_more, tried, wrong
from ckpt_surgery.runtime.checkpoint.recompute import Computation
from ckpt_surgery.runtime.surgery.surgery import Surgery
from tests.zoo.stack_toys import FlaggedStage, SwitchableChain, values

pytestmark = pytest.mark.torch


def measured(model: nn.Module | None = None) -> dict[str, Any]:
    return tried(model or SwitchableChain(stage=FlaggedStage()), (values(),))


def row(library: str = "timm", **changes: Any) -> dict[str, Any]:
    plain = {
        "library": library,
        "model": "ViT",
        "depth": "tiny",
        "blocks": {"Block": 4},
        "undone": True,
        "problem": "",
    }
    sizes = {"without": {"kept": 100, "peak": 200}, "library_switch": None, "wrapped": {"kept": 10, "peak": 50}}
    return {"case": f"{library}: ViT", **plain, **sizes, "verdicts": {"non_reentrant": ""}, **changes}


def test_a_healthy_model_has_its_blocks_and_saves_what_its_switch_saves() -> None:
    row = measured()
    assert row["blocks"] == {"FeedBlock": 6}
    assert row["verdicts"] == {"non_reentrant": ""}
    assert row["wrapped"]["peak"] < row["without"]["peak"]
    assert (wrong(row), row["undone"], row["problem"], keeps_more(row)) == (False, True, "", False)


def test_wrong_gradients_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Computation.__call__

    def half_more(computation: Computation, *given: Tensor) -> Any:
        result = run(computation, *given)
        return None if result is None else result * 1.5

    monkeypatch.setattr(Computation, "__call__", half_more)
    row = measured()
    assert "expected equal gradients" in row["verdicts"]["non_reentrant"]
    assert wrong(row)


def test_an_undo_that_leaves_something_behind_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    undo = Surgery.undo

    def forgetful(surgery: Surgery) -> None:
        undo(surgery)
        vars(surgery.model)["left"] = True

    monkeypatch.setattr(Surgery, "undo", forgetful)
    row = measured()
    assert not row["undone"]
    assert wrong(row)


@pytest.mark.parametrize(("peak", "more"), [(50, False), (49, True)])
def test_a_higher_peak_than_the_librarys_own_is_reported(peak: int, more: bool) -> None:
    assert keeps_more(row(library_switch={"kept": 10, "peak": peak})) is more


def test_every_goal_is_met_in_every_library() -> None:
    figures = PAGE.read()
    assert [row for row in figures["rows"] if wrong(row) or keeps_more(row)] == []
    assert sum(not row["problem"] for row in figures["rows"]) > 0.9 * len(figures["rows"])
    assert [f"{row['library']}: {row['model']}, {row['depth']}" for row in figures["rows"]] == cases()


def test_rows_of_a_library_are_replaced_and_what_is_wrong_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "COVERAGE", tmp_path)
    monkeypatch.setattr(stacks, "installed", lambda name: {name: "1"})
    before = [{key: each[key] for key in each if key != "case"} for each in (row("timm"), row("torch", model="B"))]
    PAGE.write({"versions": {"torch": "1", "timm": "1.0"}, "rows": before})
    assert not conclude([row("torch", model="C")], 2, True)
    assert [each["model"] for each in PAGE.read()["rows"]] == ["C", "ViT"]
    assert conclude([row(undone=False)], 2, False)
    assert conclude([{"case": "timm: ViT", "problem": "ModuleNotFoundError: No module named 'timm'"}], 2, False)
