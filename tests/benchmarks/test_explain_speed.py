"""benchmarks/explain_speed.py: what it runs, and its verdicts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import explain_speed
from benchmarks.explain_speed import SHAPES, Shape, main, run
from benchmarks.stopwatch import CommandFailed, Run

SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 8}


@pytest.mark.parametrize(("seconds", "code"), [(5.0, 0), (70.0, 1)])
def test_the_slowest_decides(
    seconds: float, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ran(shape: Shape) -> Run:
        return Run(seconds if shape is SHAPES[-1] else 5.0, peak=10**9)

    monkeypatch.setattr(explain_speed, "run", ran)
    out = tmp_path / "out.json"
    assert main(["--rounds", "2", "--out", str(out)]) == code
    figure = json.loads(out.read_text(encoding="utf-8"))["figures"]["DeepSeek-V3, 256 experts, imports included"]
    assert (figure["values"], figure["verdict"]) == ([seconds, seconds], "missed" if code else "ok")
    assert "Llama 405B: memory" in capsys.readouterr().out


def test_a_command_that_fails_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(explain_speed, "SHAPES", [replace(SHAPES[0], tokens=10**9)])
    assert main(["--out", str(tmp_path / "out.json")]) == 2
    assert "131,072 positions" in capsys.readouterr().err


def test_the_configuration_is_that_of_the_shape() -> None:
    told = run(replace(SHAPES[0], config={**SHAPES[0].config, **SMALL}, tokens=64)).output
    assert "bfloat16 1x64x16" in told
    with pytest.raises(CommandFailed, match="ended with 2"):
        run(replace(SHAPES[0], config={"model_type": "no_such"}))
