"""What `tiny_model` gives: a model that trains, for many kinds of models, or one clear sentence."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, MixtralForCausalLM

from ckpt_surgery.measure.step import loss_of
from ckpt_surgery.tiny import CannotBuild, TinyModel, ladder, model_classes, tiny_model

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
    found = tiny(name)
    loss = loss_of(found.model.train()(**found.inputs))
    loss.backward()  # type: ignore[no-untyped-call]
    assert bool(torch.isfinite(loss))
    assert any(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in found.model.parameters())
    assert sum(p.numel() for p in found.model.parameters()) <= ladder.LARGEST


def test_the_first_rung_has_no_notes() -> None:
    found = tiny("BertModel")
    assert (found.step, found.notes) == (0, ())


def test_the_same_seed_gives_the_same_weights() -> None:
    one, other = (dict(tiny("BertModel").model.named_parameters()) for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_random_number_generators_are_left_as_found() -> None:
    states = torch.get_rng_state(), random.getstate()
    tiny("BertForMaskedLM")
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


def test_no_gradient_is_left_behind() -> None:
    assert all(p.grad is None for p in tiny("BertForMaskedLM").model.parameters())


def test_options_come_on_top_in_every_part_that_has_them() -> None:
    found = tiny_model(MixtralForCausalLM, options={"output_router_logits": True})
    assert found.config.output_router_logits
    assert found.model(**found.inputs).router_logits is not None
    parts = tiny("CLIPModel", attention_dropout=0.25).config
    assert parts.text_config.attention_dropout == parts.vision_config.attention_dropout == 0.25


def test_routers_get_a_gradient() -> None:
    found = tiny("MixtralForCausalLM")
    loss_of(found.model.train()(**found.inputs)).backward()  # type: ignore[no-untyped-call]
    routers = [p for name, p in found.model.named_parameters() if name.endswith("gate.weight")]
    assert routers
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in routers)


def test_a_configuration_may_be_given() -> None:
    assert tiny_model(LlamaForCausalLM, LlamaConfig(tie_word_embeddings=True)).config.tie_word_embeddings


class RefusesSmall(BertModel):  # type: ignore[misc]
    """A model that wants the widths that it was configured for."""

    def __init__(self, config: BertConfig) -> None:
        if config.hidden_size < 768:
            raise ValueError(f"too narrow: {config.hidden_size}")
        super().__init__(config)


def test_a_later_rung_is_taken_where_the_first_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "_alike", lambda one, other: False)
    found = tiny_model(RefusesSmall, BertConfig)
    assert found.step == 3
    assert found.config.hidden_size == 768
    assert [note.split(":")[0] for note in found.notes] == ["rung 0", "rung 1", "rung 2"]


class RefusesAll(BertModel):  # type: ignore[misc]
    def __init__(self, config: BertConfig) -> None:
        raise ValueError("not today,\nnor tomorrow")


def test_what_cannot_be_built_is_reported_in_one_sentence() -> None:
    with pytest.raises(CannotBuild) as raised:
        tiny_model(RefusesAll, BertConfig)
    assert str(raised.value) == "no tiny RefusesAll can be made: size raised ValueError: not today, nor tomorrow"


def test_the_report_survives_a_process() -> None:
    error = CannotBuild("A", "forward", ValueError("b"))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.stage) == (str(error), "forward")


class Infinite(BertModel):  # type: ignore[misc]
    def forward(self, input_ids: torch.Tensor) -> Any:
        output = super().forward(input_ids)
        output.last_hidden_state = output.last_hidden_state * float("inf")
        return output


def test_a_loss_that_is_not_finite_is_no_reference() -> None:
    with pytest.raises(CannotBuild, match=r"training step raised ValueError: the loss is (nan|inf|-inf)"):
        tiny_model(Infinite, BertConfig)


def test_nothing_larger_than_the_cap_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "LARGEST", 1000)
    with pytest.raises(CannotBuild, match=r"size raised ValueError: [\d,]+ parameters are more than 1,000$"):
        tiny("BertModel")


def test_a_class_without_a_configuration_is_refused() -> None:
    with pytest.raises(CannotBuild, match="names no configuration class"):
        tiny_model(torch.nn.Linear)


def test_the_public_names_are_those_of_the_package() -> None:
    assert transformers.BertModel is model_classes()["BertModel"].load()
