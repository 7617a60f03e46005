"""Tiny models that are hard on checkpointing: padded rows in masks, dropout, and inputs of many forms."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers

from ckpt_surgery.measure.loss import loss_of
from ckpt_surgery.tiny import model_classes, tiny_model
from ckpt_surgery.tiny.configs import DROPOUT_RATE, set_dropout
from ckpt_surgery.tiny.inputs import padded

pytestmark = pytest.mark.both


def test_the_end_of_the_last_row_of_a_mask_is_padding() -> None:
    values = {"attention_mask": torch.ones(3, 8, dtype=torch.long), "pixel_mask": torch.ones(2, 4, dtype=torch.bool)}
    result = padded(values)
    assert result["attention_mask"].tolist() == [[1] * 8, [1] * 8, [1] * 6 + [0] * 2]
    assert result["pixel_mask"].tolist() == [[True] * 4, [True] * 3 + [False]]
    assert values["attention_mask"].all()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("input_ids", torch.ones(2, 8)),
        ("attention_mask", torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])),
        ("attention_mask", torch.ones(2, 1, 8, 8)),
        ("attention_mask", torch.ones(2, 2)),
        ("head_mask", None),
    ],
)
def test_what_is_no_full_mask_of_positions_stays(name: str, value: object) -> None:
    assert padded({name: value})[name] is value


def test_a_rate_of_zero_becomes_one_that_drops_and_others_stay() -> None:
    config = transformers.BartConfig(attention_dropout=0.0, dropout=0.3, encoder_layerdrop=0.0, classifier_dropout=0.0)
    set_dropout(config)
    assert config.attention_dropout == DROPOUT_RATE > 0
    assert (config.dropout, config.encoder_layerdrop, config.classifier_dropout) == (0.3, 0.0, 0.0)
    parts = transformers.CLIPConfig()
    set_dropout(parts)
    assert parts.text_config.attention_dropout == parts.vision_config.attention_dropout == DROPOUT_RATE
    tiny = tiny_model(transformers.LlamaForCausalLM)
    assert tiny.config.attention_dropout == DROPOUT_RATE
    assert tiny.inputs["attention_mask"][-1, -1] == 0


@pytest.mark.parametrize(
    "name",
    [
        "Blip2VisionModel",
        "BridgeTowerForContrastiveLearning",
        "CLIPVisionModelWithProjection",
        "ClapAudioModelWithProjection",
        "LukeForEntitySpanClassification",
        "PerceiverForOpticalFlow",
        "RagTokenForGeneration",
        "SegGptForImageSegmentation",
        "SplinterForPreTraining",
        "VisualBertForMultipleChoice",
        "WhisperEncoder",
    ],
)
def test_inputs_of_many_forms_reach_most_parameters(name: str) -> None:
    entry = model_classes()[name]
    tiny = tiny_model(entry.load(), entry.config_class())
    loss_of(tiny.model.train()(**tiny.inputs)).backward()  # type: ignore[no-untyped-call]
    parameters = [parameter for parameter in tiny.model.parameters() if parameter.requires_grad]
    assert sum(parameter.grad is not None for parameter in parameters) > len(parameters) / 2
