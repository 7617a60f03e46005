"""The benchmark of offload to files: what is written is counted, and slow copies miss its targets."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from benchmarks import offload, offload_files
from benchmarks.figures import Target
from benchmarks.offload_files import in_files, main
from ckpt_surgery.runtime.offload import disk_transport

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "VOCABULARY", 8)
    for name, value in (("SMALL", {**offload.TOY, "hidden_size": 16}), ("SHORT", 32), ("SEQUENCES", 2)):
        monkeypatch.setattr(offload_files, name, value)


def test_files_hold_what_leaves_and_slow_ones_miss_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(target: torch.Tensor, source: torch.Tensor) -> None:
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            target.copy_(source)

    monkeypatch.setattr(disk_transport, "_copy", late)
    by_name = {figure.name: figure for figure in in_files(3, 2)}
    assert by_name["files: written in a step"].median * 10**9 == 2 * (2 * 32 * 16 * 4)
    assert len(by_name["files: a step, files"].values) == 2
    assert {name: figure.verdict for name, figure in by_name.items() if figure.verdict} == {
        "files: copies that a step waited for / all": "missed",
        "files: processor seconds, files / no offload": "missed",
    }


def test_the_figures_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FEW", "NEAR"):
        monkeypatch.setattr(offload_files, name, Target(100.0))  # of steps as short as these, time says nothing
    target = tmp_path / "files.json"
    assert main(["--layers", "3", "--steps", "1", "--out", str(target)]) == 0
    assert json.loads(target.read_text(encoding="utf-8"))["layers"] == 3
