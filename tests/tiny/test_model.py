"""`tiny_model`: a model that trains, for many kinds of models, or one clear sentence."""

from __future__ import annotations

import pickle
import random
from importlib.util import find_spec
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, MixtralForCausalLM

from ckpt_surgery.errors import BuildStage
from ckpt_surgery.measure.loss import loss_of
from ckpt_surgery.tiny import CannotBuild, TinyModel, model_classes, tiny_model
from ckpt_surgery.tiny import model as tiny_models

pytestmark = pytest.mark.both

DIVERSE = (
    "BertForMultipleChoice",
    "CLIPModel",
    "ClvpModelForConditionalGeneration",
    "DetrForObjectDetection",
    "GPTBigCodeForCausalLM",
    "Llama4VisionModel",
    "MllamaVisionModel",
    "Qwen2VLForConditionalGeneration",
    "SwinForImageClassification",
    "T5ForConditionalGeneration",
    "TimeSeriesTransformerForPrediction",
    "VideoMAEForVideoClassification",
    "Wav2Vec2ForCTC",
    "WhisperForConditionalGeneration",
    "ZambaForCausalLM",
    "xLSTMForCausalLM",
)


def tiny(name: str, **options: Any) -> TinyModel:
    return tiny_model(model_classes()[name].load(), options=options)


@pytest.mark.parametrize("name", DIVERSE)
def test_it_trains_for_a_step(name: str) -> None:
    tiny_form = tiny(name)
    loss = loss_of(tiny_form.model.train()(**tiny_form.inputs))
    loss.backward()  # type: ignore[no-untyped-call]
    assert bool(torch.isfinite(loss))
    assert any(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in tiny_form.model.parameters())
    assert sum(p.numel() for p in tiny_form.model.parameters()) <= tiny_models.MOST_PARAMETERS
    if name == "BertForMultipleChoice":
        assert (tiny_form.attempt, tiny_form.failures) == (0, ())


@pytest.mark.skipif(find_spec("timm") is None, reason="needs timm, which is not installed")
@pytest.mark.parametrize(
    "name",
    [
        "Gemma3nForConditionalGeneration",
        "PerceptionLMForConditionalGeneration",
        "TimmBackbone",
        "TimmWrapperForImageClassification",
    ],
)
def test_a_tower_of_timm_is_as_small(name: str) -> None:
    tiny_form = tiny(name)
    assert tiny_form.attempt == 0
    assert sum(p.numel() for p in tiny_form.model.parameters()) < 3_000_000


def test_the_same_seed_gives_the_same_weights_and_nothing_is_left_behind() -> None:
    states = torch.get_rng_state(), random.getstate()
    first, second = (dict(tiny("BertForMaskedLM").model.named_parameters()) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(parameter.grad is None for parameter in first.values())
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


def test_options_come_on_top_in_every_part_that_has_them() -> None:
    tiny_form = tiny_model(MixtralForCausalLM, options={"output_router_logits": True})
    assert tiny_form.config.output_router_logits
    assert tiny_form.model(**tiny_form.inputs).router_logits is not None
    parts = tiny("CLIPModel", attention_dropout=0.25).config
    assert parts.text_config.attention_dropout == parts.vision_config.attention_dropout == 0.25
    assert tiny_model(LlamaForCausalLM, LlamaConfig(tie_word_embeddings=True)).config.tie_word_embeddings


class RefusesSmall(BertModel):  # type: ignore[misc]
    """A model that insists on the widths it was configured for."""

    def __init__(self, config: BertConfig) -> None:
        if config.hidden_size < 768:
            raise ValueError(f"too narrow: {config.hidden_size}")
        super().__init__(config)


def test_a_later_attempt_is_taken_if_the_first_ones_fail() -> None:
    tiny_form = tiny_model(RefusesSmall, BertConfig)
    assert tiny_form.attempt == 3
    assert tiny_form.config.hidden_size == 768
    assert [failure.stage for failure in tiny_form.failures] == [BuildStage.CONSTRUCTION] * 3


class RefusesAll(BertModel):  # type: ignore[misc]
    def __init__(self, config: BertConfig) -> None:
        raise ValueError("not today,\nnor tomorrow")


class Infinite(BertModel):  # type: ignore[misc]
    def forward(self, input_ids: torch.Tensor) -> Any:
        output = super().forward(input_ids)
        output.last_hidden_state = output.last_hidden_state * float("inf")
        return output


def test_what_cannot_be_built_is_reported_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotBuild, match="names no configuration class"):
        tiny_model(torch.nn.Linear)
    with pytest.raises(CannotBuild, match=r"training step raised ValueError: the loss is (nan|inf|-inf)"):
        tiny_model(Infinite, BertConfig)
    monkeypatch.setattr(tiny_models, "MOST_PARAMETERS", 1000)
    with pytest.raises(CannotBuild, match=r"size raised ValueError: [\d,]+ parameters are more than 1,000$"):
        tiny("BertModel")
    with pytest.raises(CannotBuild) as raised:
        tiny_model(RefusesAll, BertConfig)
    assert (
        str(raised.value) == "no tiny RefusesAll can be made: construction raised ValueError: not today, nor tomorrow"
    )


def test_the_error_survives_a_process() -> None:
    error = CannotBuild("A", BuildStage.FORWARD, ImportError("b"))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.stage, again.missing_package) == (str(error), BuildStage.FORWARD, True)
    assert again.origin == error.origin == ("builtins.ImportError",)


class NeedsPackage(BertModel):  # type: ignore[misc]
    tries = 0

    def __init__(self, config: BertConfig) -> None:
        type(self).tries += 1
        raise ModuleNotFoundError("No module named 'kernels'")


def test_a_missing_package_ends_the_attempts() -> None:
    with pytest.raises(CannotBuild) as raised:
        tiny_model(NeedsPackage, BertConfig)
    assert raised.value.missing_package
    assert NeedsPackage.tries == 1


@pytest.mark.parametrize(
    ("stages", "reported"),
    [
        (["size"], 0),
        (["forward", "size"], 0),
        (["configuration", "size"], 1),
        (["size", "forward", "size"], 1),
        (["size", "size"], 0),
        (["inputs", "forward"], 1),
    ],
)
def test_a_later_form_that_is_too_large_does_not_hide_an_earlier_failure(stages: list[str], reported: int) -> None:
    failures = [CannotBuild("A", BuildStage(stage), stage) for stage in stages]
    assert tiny_models._reported(failures) is failures[reported]
