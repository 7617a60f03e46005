"""The benchmark of plans on a GPU, dry: it reports what the meter sees, and each target can be missed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from benchmarks import plan_on_gpu
from benchmarks.device import PROCESSOR, Device
from benchmarks.figures import Figure
from benchmarks.gpu.parts import PARTS
from benchmarks.plan_on_gpu import (
    CASES,
    Case,
    case_figures,
    main,
    on_shapes,
    plan_and_every,
    plan_figures,
    told_and_measured,
    told_peak,
)

pytestmark = pytest.mark.torch
FEW = (Case("Llama 1B", 4, lora=True, checkpointed=True, fused_loss=True), Case("ViT-L", images=128))
ON_CUDA = Device("cuda", "NVIDIA H200")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_on_gpu, "CASES", FEW)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def verdicts(figures: list[Figure]) -> dict[str, str]:
    return {figure.name: figure.verdict for figure in figures if figure.target}


def test_the_steps_have_their_own_names() -> None:
    assert len({str(case) for case in CASES}) == len(CASES) == 19
    assert str(FEW[0]) == "Llama 1B, 4K, LoRA, checkpointed, fused loss"
    assert any(part.arguments == ("-m", "benchmarks.plan_on_gpu") for part in PARTS)


def test_a_dry_run_writes_its_figures(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    assert main(["--toy", "--steps", "1", "--out", str(out)]) == 0
    figures = json.loads(out.read_text())["figures"]
    for case in FEW:
        assert figures[f"{case}: under by"]["values"] == figures[f"{case}: over by"]["values"] == [0.0]
        assert figures[f"{case}: told"]["values"][0] > 0
    assert figures["plan: peak / budget"]["verdict"] == "ok"


SMALL = dict.fromkeys(replace(case, thousands=min(case.thousands, 1), texts=1, images=1) for case in CASES)


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_each_step_runs_on_shapes_as_on_a_card_and_small_on_the_processor(case: Case) -> None:
    with_sizes = {**plan_on_gpu.MODELS[case.model], "num_hidden_layers": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_on_gpu, "MODELS", {case.model: with_sizes})
        assert told_peak(on_shapes(case, ON_CUDA), case, ON_CUDA) > 0
    toy = told_and_measured(case, PROCESSOR)
    if case.long_context:
        assert toy["told"] < toy["measured"], "copies in host memory are among the processor's bytes"
    else:
        assert toy["told"] == toy["measured"]


@pytest.mark.parametrize(
    ("factor", "under", "over"),
    [(0.98, "missed", "ok"), (0.995, "ok", "ok"), (1.02, "ok", "ok"), (1.04, "ok", "missed")],
)
def test_a_peak_may_be_predicted_too_low_by_less_than_too_high(factor: float, under: str, over: str) -> None:
    judged = verdicts(list(case_figures(FEW[1], told=int(factor * 10**9), measured=10**9)))
    assert judged == {f"{FEW[1]}: under by": under, f"{FEW[1]}: over by": over}


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
