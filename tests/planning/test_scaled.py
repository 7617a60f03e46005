"""Steps that cannot run on shapes: a given model's copy runs with data, or a tiny one is scaled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ckpt_surgery import explain, wrap_blocks
from ckpt_surgery.cli.main import main
from ckpt_surgery.errors import NotOnShapes, PlanningError
from ckpt_surgery.planning import explain as explaining
from ckpt_surgery.planning import shapes
from ckpt_surgery.planning.explain import explanation_of
from ckpt_surgery.planning.scaled import TinyStandIn, explain_scaled
from ckpt_surgery.planning.target import main_class
from ckpt_surgery.planning.training import TrainingSetup
from ckpt_surgery.survey.resolve import resolve
from tests.planning.test_explain import measured
from tests.planning.test_target import config, model_of
from tests.zoo.tiny_models import llama, tokens

pytestmark = [pytest.mark.torch]
LLAMA = {"hidden_size": 256, "intermediate_size": 640, "vocab_size": 1000, "num_hidden_layers": 6}
WHY = NotOnShapes("the step reads values")


def reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Llama's MLPs count their results above zero; nothing is small enough to be drawn."""
    from transformers.models.llama.modeling_llama import LlamaMLP

    forward = LlamaMLP.forward

    def reading(self: Any, x: Tensor) -> Tensor:
        result: Tensor = forward(self, x)
        return result if len(result[result > 0]) else result * 2

    monkeypatch.setattr(LlamaMLP, "forward", reading)
    monkeypatch.setattr(shapes, "_MOST_FLOAT_BYTES", 0)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_copy_of_a_model_in_hand_runs_with_data(monkeypatch: pytest.MonkeyPatch, wrapped: bool) -> None:
    reads(monkeypatch)
    model, inputs = llama(), tokens()
    if wrapped:
        wrap_blocks(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    told = explain(model, inputs)
    assert told.kept_bytes == measured(model, inputs)
    assert told.checkpointed == (told.blocks if wrapped else 0)
    (said,) = told.assumptions
    assert "reads values that depend on weights (test_scaled.py, line" in said
    assert said.endswith(
        "`return result if len(result[result > 0]) else result * 2`): so a copy of the model ran it with data."
    )
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_too_large_to_be_copied_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    reads(monkeypatch)
    monkeypatch.setattr(explaining, "_MOST_COPIED_BYTES", 1000)
    with pytest.raises(PlanningError, match="`ckpt_surgery verify` measures a tiny model"):
        explain(llama(), tokens())


def test_a_model_whose_own_step_fails_keeps_its_reason() -> None:
    class Fails(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("it is broken")

    with pytest.raises(NotOnShapes, match="it is broken"):
        explain(Fails(2, 2), [torch.zeros(1, 2)])


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.bfloat16, 0.01), (torch.float32, 0.1)],  # CUDA repeats the heads of float32 keys
)
def test_a_tiny_llama_scaled_is_what_the_released_one_keeps(
    tmp_path: Path, dtype: torch.dtype, tolerance: float
) -> None:
    model = model_of(config(tmp_path, **LLAMA), tokens=48, dtype=dtype)
    told = model.explained()
    standing = TinyStandIn.of(type(model.model), model.model.config, 48, 2, dtype)
    assert standing is not None
    estimate = explanation_of(model.model, standing.scaled_step(model.model), 0)
    assert estimate.parameter_bytes == told.parameter_bytes
    assert estimate.gradient_bytes == pytest.approx(told.gradient_bytes, rel=1e-6)
    assert estimate.kept_bytes == pytest.approx(told.kept_bytes, rel=tolerance)
    assert estimate.peak_bytes == pytest.approx(told.peak_bytes, rel=0.1)


@pytest.mark.parametrize("steps", ["both", "on"])
def test_the_command_says_that_it_estimates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], steps: str
) -> None:
    reads(monkeypatch)
    file, page = tmp_path / "told.json", tmp_path / "told.html"
    command = ["explain", config(tmp_path, **LLAMA), "--tokens", "48", "--checkpointing", steps]
    assert main([*command, "--json", str(file), "--html", str(page)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "so a tiny model ran with data, and its sizes were scaled by their shapes. This is an estimate." in said
    assert "test_scaled.py, line" in said
    told = json.loads(file.read_text())
    assert list(told) == (["checkpointing_off", "checkpointing_on"] if steps == "both" else ["checkpointing_on"])
    assert "an estimate" in told["checkpointing_on"]["assumptions"][0]
    assert "an estimate" in page.read_text()
    if steps == "both":
        assert told["checkpointing_on"]["checkpointed"] == 6
        assert told["checkpointing_on"]["kept_bytes"] < 0.5 * told["checkpointing_off"]["kept_bytes"]


def test_what_cannot_be_estimated_keeps_its_reason(tmp_path: Path) -> None:
    target = main_class(resolve([config(tmp_path)], variants=False))
    options: dict[str, Any] = {"tokens": 32, "batch": 1, "dtype": torch.bfloat16}
    with pytest.raises(NotOnShapes, match="the step reads values"):
        explain_scaled(target, WHY, **options, training=TrainingSetup.of("none", 8, "fsdp", None))
    with pytest.raises(NotOnShapes, match="the step reads values"):
        explain_scaled(target, WHY, **options, training=TrainingSetup.of("none", 1, None, "H100"))
    images = main_class(resolve(["vit"], variants=False))
    with pytest.raises(NotOnShapes, match="the step reads values"):
        explain_scaled(images, WHY, **options)
