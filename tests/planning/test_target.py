"""A name's model: at its released size, without data, in the settings that people train with."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ckpt_surgery.errors import PlanningError
from ckpt_surgery.planning import target as targets
from ckpt_surgery.planning.explain import explain
from ckpt_surgery.planning.states import state_bytes
from ckpt_surgery.planning.target import ReleasedModel, fit_parts, main_class
from ckpt_surgery.planning.training import Optimizer
from ckpt_surgery.runtime.surgery.wrap import wrap_blocks
from ckpt_surgery.survey.resolve import resolve
from ckpt_surgery.survey.target import TargetError
from tests.conftest import installed_major

pytestmark = [pytest.mark.torch, pytest.mark.both]
SMALL = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def config(folder: Path, **values: Any) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps({**SMALL, **values}))
    return str(path)


def model_of(name: str, tokens: int | None = 32, batch: int = 2, dtype: torch.dtype = torch.bfloat16) -> ReleasedModel:
    return ReleasedModel.of(main_class(resolve([name], variants=False)), tokens=tokens, batch=batch, dtype=dtype)


def test_a_config_gives_a_model_of_its_size_and_its_text(tmp_path: Path) -> None:
    model = model_of(config(tmp_path))
    assert {name: tuple(value.shape) for name, value in model.inputs.items()} == {
        "input_ids": (2, 32),
        "labels": (2, 32),
    }
    assert model.tokens == 32
    assert {parameter.dtype for parameter in model.model.parameters()} == {torch.bfloat16}
    assert model.model.training
    assert not model.model.config.use_cache  # type: ignore[union-attr]


@pytest.mark.parametrize("wrapped", [False, True])
def test_it_keeps_what_the_real_model_keeps(tmp_path: Path, wrapped: bool) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    model = model_of(config(tmp_path))
    values = {name: value for name, value in SMALL.items() if name not in ("model_type", "architectures")}
    real = LlamaForCausalLM._from_config(LlamaConfig(**values, use_cache=False), dtype=torch.bfloat16).train()
    if wrapped:
        wrap_blocks(model.model, self_check="never")
        wrap_blocks(real, self_check="never")
    told, expected = model.explained(), explain(real, model.inputs)
    assert told.parameter_bytes == expected.parameter_bytes
    assert told.checkpointed == expected.checkpointed == (3 if wrapped else 0)
    seeds = 0 if wrapped else 3 * (16 + 8)  # CUDA's attention keeps what its dropout would draw from
    assert expected.kept_bytes <= told.kept_bytes <= expected.kept_bytes + seeds


def test_more_tokens_than_positions_are_refused(tmp_path: Path) -> None:
    name = config(tmp_path)
    assert model_of(name, tokens=64).tokens == 64
    with pytest.raises(PlanningError, match="has 64 positions, and 65 tokens were asked for: give --tokens 64"):
        model_of(name, tokens=65)


def test_a_class_is_built_in_its_released_size() -> None:
    model = model_of("GPT2LMHeadModel", batch=1)
    assert sum(parameter.numel() for parameter in model.model.parameters()) == 124_439_808


@pytest.mark.parametrize(
    ("model_type", "chosen"),
    [("llama", "LlamaForCausalLM"), ("bert", "BertForMaskedLM"), ("bart", "BartForConditionalGeneration")],
)
def test_a_model_type_means_the_class_that_is_trained(model_type: str, chosen: str) -> None:
    assert main_class(resolve([model_type], variants=False)).model == chosen


def test_images_have_the_size_in_the_configuration() -> None:
    model = model_of("vit")
    assert model.inputs["pixel_values"].shape == (2, 3, 224, 224)
    assert model.tokens == 0


def test_a_factory_is_called_without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "made", lambda: nn.Linear(2**16, 2**16), raising=False)
    for config in (None, {"hidden_size": 4}):
        monkeypatch.setattr(nn.Linear, "config", config, raising=False)
        with pytest.raises(PlanningError, match="returns a model without a `config` of attributes: return"):
            model_of(f"{__name__}:made")
    both = lambda: (nn.Linear(2**16, 2**16), [torch.zeros(4, 2**16)])  # noqa: E731 - a factory without a name
    monkeypatch.setattr(sys.modules[__name__], "made", both)
    told = model_of(f"{__name__}:made").explained()
    assert told.parameter_bytes == 2 * (2**32 + 2**16)
    monkeypatch.setattr(sys.modules[__name__], "made", lambda: "a model")
    with pytest.raises(PlanningError, match="returns an object of type str: it must return a model"):
        model_of(f"{__name__}:made")


def test_what_cannot_be_built_is_reported(tmp_path: Path) -> None:
    with pytest.raises((PlanningError, TargetError), match=r"LlamaConfig|LlamaForCausalLM"):
        model_of(config(tmp_path, num_attention_heads=0))


@pytest.mark.skipif(installed_major("transformers") == 4, reason="there the positions are counted on shapes alone")
def test_one_with_fewer_positions_than_it_says_gets_a_shorter_text() -> None:
    assert model_of("camembert", tokens=None).tokens == 256


@pytest.mark.parametrize(
    ("factory", "said"), [(lambda size: size, "TypeError: .*'size'"), (lambda: sys.exit(7), "SystemExit: 7")]
)
def test_a_factory_that_fails_is_named(factory: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "made", factory, raising=False)
    with pytest.raises(PlanningError, match=f"the factory {__name__}:made raised {said}"):
        model_of(f"{__name__}:made")


def test_the_state_of_adamw_is_of_what_is_trained() -> None:
    model = nn.Linear(4, 4)
    assert state_bytes(model.parameters(), Optimizer.ADAMW) == 2 * 20 * 4
    model.bias.requires_grad_(False)
    assert state_bytes(model.parameters(), Optimizer.ADAMW) == 2 * 16 * 4


def test_a_model_whose_text_must_have_one_length_gets_it() -> None:
    assert model_of("reformer", tokens=None, dtype=torch.float32).tokens == 64 * 64


@pytest.mark.skipif(installed_major("transformers") == 4, reason="its model came with 5")
def test_features_get_the_width_of_the_text() -> None:
    from transformers import GlmOcrConfig

    glm = GlmOcrConfig()
    changed = fit_parts(glm)
    assert glm.vision_config.out_hidden_size == glm.text_config.hidden_size == 1024
    assert "vision_config.out_hidden_size 1536 -> 1024" in changed
    assert fit_parts(glm) == ()


@pytest.mark.skipif(installed_major("transformers") == 4, reason="its model came with 5")
def test_defaults_that_do_not_fit_are_changed_and_named() -> None:
    model = model_of("uvdoc", tokens=None)
    told = model.explained()
    size, changed = told.assumptions
    assert "the defaults of UVDocConfig" in size
    assert "do not fit together; changed: backbone_config.out_features ['stage6'] -> ['stage1'," in changed
    assert changed in told.to_html().replace("&#x27;", "'").replace("&gt;", ">")
    assert json.loads(told.to_json())["assumptions"] == list(told.assumptions)
    assert changed in str(told)


def test_defaults_that_fit_are_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "fit_parts", lambda config: pytest.fail("they fit"))
    (size,) = model_of("vit").explained().assumptions
    assert "the defaults of ViTConfig" in size


def test_what_a_file_says_is_never_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "fit_parts", lambda config: pytest.fail("it is the user's"))
    with pytest.raises(PlanningError, match="the constructor of LlamaForCausalLM"):
        model_of(config(tmp_path, hidden_act="no_such_function"))
