"""The benchmark of what checkpointing costs the host: its figures come from differences within a round."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import host_cost
from benchmarks.gpu_steps import ATTENTION, SELECTIVE


def test_differences_are_taken_within_a_round() -> None:
    seconds = {way: [1.0, 2.0, 9.0] for way in host_cost.GROUPS[0]}
    seconds |= {SELECTIVE: [1.1, 2.1, 9.1], ATTENTION: [1.01, 2.01, 9.01]}
    figures = {figure.name: figure for figure in host_cost.figures(seconds, layers=1000)}
    assert figures["save attention: more"].median == pytest.approx(10)
    assert figures["save attention: more"].verdict == "ok"
    assert figures["save attention, in units of torch's policy for attention"].median == pytest.approx(0.1)
    slow = seconds | {ATTENTION: [1.09, 2.09, 9.09]}
    assert [figure.verdict for figure in host_cost.figures(slow, layers=1)][-1] == "missed"


@pytest.mark.torch
def test_toy_sizes(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    out = tmp_path / "host_cost.json"
    assert host_cost.main(["--toy", "--out", str(out)]) in (0, 1)  # as fast as the machine is
    figures = json.loads(out.read_text())["figures"]
    assert {f"{way}: more" for ways in host_cost.GROUPS for way in ways} - {*figures} == {"transformers: more"}
