"""`tiny_inputs`: arguments that fit, the same for the same seed, and nothing disturbed."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from torch import Tensor

from ckpt_surgery.errors import OptionTypeError
from ckpt_surgery.tiny import CannotBuild, tiny_config, tiny_inputs

pytestmark = pytest.mark.both


def built(name: str, **changes: Any) -> Any:
    model_class = getattr(transformers, name)
    config = tiny_config(model_class.config_class)
    for key, value in changes.items():
        setattr(config, key, value)
    torch.manual_seed(0)
    return model_class(config)


def same(inputs: dict[str, Any], other: dict[str, Any]) -> bool:
    tensors = [(value, other[name]) for name, value in inputs.items() if isinstance(value, Tensor)]
    return inputs.keys() == other.keys() and all(torch.equal(a, b) for a, b in tensors)


def test_the_same_seed_gives_the_same_inputs_and_disturbs_nothing() -> None:
    model = built("BertForSequenceClassification")
    assert same(tiny_inputs(model, seed=3), tiny_inputs(model, seed=3))
    assert not same(tiny_inputs(model, seed=3), tiny_inputs(model, seed=4))
    model = built("ResNetForImageClassification").eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    states = torch.get_rng_state(), random.getstate()
    tiny_inputs(model)
    assert not model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


def test_sizes_dtypes_and_tokens_are_as_asked() -> None:
    assert tiny_inputs(built("LlamaForCausalLM"), batch=3, length=9)["input_ids"].shape == (3, 9)
    assert tiny_inputs(built("xLSTMForCausalLM"))["input_ids"].shape[1] < 64, "its kernels fail at whole chunks"
    inputs = tiny_inputs(built("ViTForImageClassification").to(torch.bfloat16))
    assert inputs["pixel_values"].dtype == torch.bfloat16
    model = built("BertForMaskedLM")
    assert not bool((tiny_inputs(model)["input_ids"] == model.config.pad_token_id).any())


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("LlamaForCausalLM", (2, 16)),
        ("BertForSequenceClassification", (2,)),
        ("BertForTokenClassification", (2, 16)),
        ("BertForMultipleChoice", (2,)),
        ("T5ForConditionalGeneration", (2, 16)),
        ("ViTForImageClassification", (2,)),
        ("Wav2Vec2ForSequenceClassification", (2,)),
    ],
)
def test_labels_fit_the_head(name: str, label: tuple[int, ...]) -> None:
    assert tiny_inputs(built(name))["labels"].shape == label


@pytest.mark.parametrize(
    "name", ["BertForQuestionAnswering", "CLIPModel", "DetrForObjectDetection", "WhisperForConditionalGeneration"]
)
def test_a_loss_comes_out_where_the_class_computes_one(name: str) -> None:
    model = built(name).train()
    assert bool(torch.isfinite(model(**tiny_inputs(model)).loss))


@pytest.mark.parametrize(
    "name", ["LlavaForConditionalGeneration", "Qwen2VLForConditionalGeneration", "Gemma3ForConditionalGeneration"]
)
def test_there_are_as_many_image_tokens_as_features(name: str) -> None:
    model = built(name)
    inputs = tiny_inputs(model)
    config = model.config
    token = getattr(config, "image_token_id", None) or config.image_token_index
    count = int((inputs["input_ids"] == token).sum())
    assert count > 0
    assert count % inputs["input_ids"].shape[0] == 0
    one_less = inputs["input_ids"].clone()
    one_less[one_less == token] = torch.where(torch.arange(count) == 0, 1, token)
    with pytest.raises(Exception, match=r"token|shape|size"):
        model(**{**inputs, "input_ids": one_less})


def test_a_model_that_takes_nothing_is_reported_in_one_sentence() -> None:
    model = built("BertModel")

    def refuse(input_ids: Tensor) -> None:
        raise ValueError("first line\nsecond line")

    model.forward = refuse
    with pytest.raises(
        CannotBuild, match=r"^no tiny BertModel can be made: forward raised ValueError: first line second"
    ):
        tiny_inputs(model)


@pytest.mark.parametrize("given", [3, torch.nn.Linear(2, 2)])
def test_what_is_no_model_of_transformers_is_refused(given: Any) -> None:
    with pytest.raises(OptionTypeError, match=f"^the model is of type {type(given).__name__}: give a model of transf"):
        tiny_inputs(given)
