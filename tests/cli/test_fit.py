"""The options of `fit`, and of `run --plan`, that are refused before a script starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery.cli import fit
from ckpt_surgery.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no script to run"),
        (["train.py"], "there is no GPU here to plan for: give --memory 24GB, or --device 4090"),
        (["--memory", "24", "train.py"], "--memory is '24': give a size with its unit"),
        (["--memory", "24GB", "--margin", "100", "train.py"], "--margin is 100: give a percentage"),
        (["--device", "H1000", "train.py"], "no device is called 'H1000'"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fit, "need_runtime", lambda _: None)
    monkeypatch.setattr(fit, "_CARDS", ())
    assert main(["fit", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_plan_stands_alone_and_has_to_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ckpt_surgery.cli.run.need_runtime", lambda _: None)
    path = tmp_path / "plan.yaml"
    path.write_text("a: 1\n", encoding="utf-8")
    assert main(["run", "--plan", str(path), "--offload", "train.py"]) == 2
    assert "--plan says all that is done to a model: leave out --offload" in capsys.readouterr().err
    assert main(["run", "--plan", str(path), "train.py"]) == 2
    assert "is not a plan" in capsys.readouterr().err
