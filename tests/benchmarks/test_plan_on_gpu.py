"""The benchmark of plans on a GPU, dry: what is told is what the meter sees, and each target can be missed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from benchmarks import plan_on_gpu
from benchmarks.device import PROCESSOR
from benchmarks.figures import Figure
from benchmarks.gpu.parts import PARTS
from benchmarks.plan_on_gpu import CASES, Case, case_figures, main, plan_and_every, plan_figures, told_and_measured

pytestmark = pytest.mark.torch
FEW = (Case("Llama 1B", 4, lora=True, checkpointed=True, fused_loss=True), Case("ViT-L", images=128))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_on_gpu, "CASES", FEW)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def verdicts(figures: list[Figure]) -> dict[str, str]:
    return {figure.name: figure.verdict for figure in figures if figure.target}


def test_there_are_twelve_steps_with_names_of_their_own() -> None:
    assert len({str(case) for case in CASES}) == 12
    assert str(FEW[0]) == "Llama 1B, 4K, LoRA, checkpointed, fused loss"
    assert any(part.arguments == ("-m", "benchmarks.plan_on_gpu") for part in PARTS)


def test_a_dry_run_writes_its_figures(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    assert main(["--toy", "--steps", "1", "--out", str(out)]) == 0
    figures = json.loads(out.read_text())["figures"]
    for case in FEW:
        assert figures[f"{case}: off by"]["values"] == [0.0]
        assert figures[f"{case}: told"]["values"][0] > 0
    assert figures["plan: peak / budget"]["verdict"] == "ok"


def test_a_peak_that_is_told_wrong_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    told = plan_on_gpu.told_peak
    monkeypatch.setattr(plan_on_gpu, "told_peak", lambda *given: int(1.04 * told(*given)))
    assert verdicts(list(case_figures(FEW[1], **told_and_measured(FEW[1], PROCESSOR)))) == {
        f"{FEW[1]}: off by": "missed"
    }


def test_a_step_without_room_has_no_measured_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> float:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(plan_on_gpu, "step", full)
    told = case_figures(FEW[1], **told_and_measured(FEW[1], PROCESSOR))
    assert [figure.name for figure in told] == [f"{FEW[1]}: told"]
    assert verdicts(plan_figures(plan_and_every(PROCESSOR, 1), PROCESSOR)) == {"the plan fits": "missed"}


def test_without_a_gpu_nothing_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "torch sees no CUDA device here" in capsys.readouterr().err
