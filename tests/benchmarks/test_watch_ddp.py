"""The benchmark of what a watch costs: it runs, its target can be missed, the json has every figure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import watch_ddp
from benchmarks.figures import Figure, Target
from benchmarks.watch_ddp import PART, main
from tests.processes import ROOT

pytestmark = pytest.mark.torch


def test_it_prints_a_table_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    out = tmp_path / "new" / "watch.json"
    assert main(["--rounds", "3", "--out", str(out)]) in (0, 1)
    figures = json.loads(out.read_text(encoding="utf-8"))["figures"]
    assert figures["the watch's part of it"]["verdict"] in ("ok", "missed")
    assert len(figures["a step of 500 tiny parameters"]["values"]) == 3
    printed = capsys.readouterr().out
    assert "the watch's part of it" in printed
    monkeypatch.setattr(watch_ddp, "PART", Target(PART.limit, at_least=True))
    assert main(["--rounds", "1", "--out", str(out)]) == 1


def test_a_place_that_cannot_be_written_costs_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_ddp, "figures", lambda rounds: [Figure("the watch's part of it", (1.0,) * rounds, "%")])
    (tmp_path / "file").write_text("")
    assert main(["--rounds", "1", "--out", str(tmp_path / "file" / "watch.json")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
