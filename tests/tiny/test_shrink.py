"""The promises of `tiny_config` on configuration classes of the installed transformers."""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import (
    BartConfig,
    BertConfig,
    CLIPConfig,
    DetrConfig,
    EsmConfig,
    LlamaConfig,
    LlavaConfig,
    MixtralConfig,
    Qwen2VLConfig,
    Qwen3NextConfig,
    SwinConfig,
    T5Config,
    TimmBackboneConfig,
    TimmWrapperConfig,
    Wav2Vec2Config,
    Zamba2Config,
)

from ckpt_surgery.tiny import tiny_config
from ckpt_surgery.tiny.configs import all_configs
from ckpt_surgery.tiny.field_rules import names_token
from ckpt_surgery.tiny.shrink import fill_open_fields
from ckpt_surgery.tiny.sizes import ATTEMPTS, VOCABULARY

pytestmark = pytest.mark.both

SOME = (
    BertConfig,
    CLIPConfig,
    DetrConfig,
    LlamaConfig,
    LlavaConfig,
    MixtralConfig,
    Qwen2VLConfig,
    Qwen3NextConfig,
    SwinConfig,
    T5Config,
    Wav2Vec2Config,
    Zamba2Config,
)


@pytest.mark.parametrize("config_class", SOME)
def test_a_configuration_becomes_tiny_at_once(config_class: type) -> None:
    config = tiny_config(config_class)
    assert tiny_config(config).to_dict() == config.to_dict()
    assert type(config) is config_class
    for part in all_configs(config):
        values = part.to_dict()
        widths = [values.get(name) for name in ("hidden_size", "d_model", "intermediate_size", "d_ff", "embed_dim")]
        assert all(width <= 256 for width in widths if isinstance(width, int))
        tokens = {name: value for name, value in values.items() if names_token(name) and type(value) is int}
        assert all(value < VOCABULARY for value in tokens.values()), tokens


def test_special_tokens_that_differ_stay_different() -> None:
    config = tiny_config(Qwen2VLConfig)
    ids = [config.image_token_id, config.video_token_id, config.vision_start_token_id, config.vision_end_token_id]
    assert len(set(ids)) == 4


def test_every_kind_of_layer_stays() -> None:
    kinds = ["linear_attention"] * 5 + ["full_attention"] * 3
    assert tiny_config(Qwen3NextConfig(num_hidden_layers=8, layer_types=kinds)).layer_types == kinds[:6]
    assert tiny_config(LlamaConfig).num_hidden_layers == 2
    assert list(tiny_config(SwinConfig).depths) == [2, 2, 2, 2], "stages keep their number"
    before, after = Qwen3NextConfig(), tiny_config(Qwen3NextConfig)
    assert set(after.layer_types) == set(before.layer_types)
    assert after.layer_types == before.layer_types[: after.num_hidden_layers]
    assert after.num_hidden_layers == len(after.layer_types) < before.num_hidden_layers


def test_parts_of_a_configuration_shrink_too() -> None:
    mine = CLIPConfig()
    before = mine.to_dict()
    tiny_config(mine)
    assert mine.to_dict() == before, "the original is not touched"
    experts = tiny_config(MixtralConfig)
    assert (experts.num_local_experts, experts.num_experts_per_tok) == (4, 2)
    config = tiny_config(LlavaConfig)
    assert config.text_config.hidden_size == config.vision_config.hidden_size == 64
    assert config.text_config.num_hidden_layers == config.vision_config.num_hidden_layers == 2


def test_an_instance_keeps_its_switches() -> None:
    mine = LlamaConfig(
        hidden_act="gelu", attention_bias=True, tie_word_embeddings=True, attention_dropout=0.3, num_key_value_heads=8
    )
    config = tiny_config(mine)
    assert (config.hidden_act, config.attention_bias, config.tie_word_embeddings) == ("gelu", True, True)
    assert config.attention_dropout == 0.3
    assert config.num_key_value_heads < config.num_attention_heads, "grouped queries stay grouped"
    alone = tiny_config(LlamaConfig(num_key_value_heads=32))
    assert alone.num_key_value_heads == alone.num_attention_heads
    assert tiny_config(BertConfig(num_labels=5)).num_labels == 5
    dropping = tiny_config(BartConfig(encoder_layerdrop=0.3, decoder_layerdrop=0.2, dropout=0.4))
    assert (dropping.encoder_layerdrop, dropping.decoder_layerdrop, dropping.dropout) == (0.0, 0.0, 0.4)


def test_a_backbone_of_timm_is_replaced() -> None:
    config = tiny_config(DetrConfig(use_timm_backbone=True, backbone="resnet50", use_pretrained_backbone=False))
    assert config.backbone_config.model_type == "resnet"
    assert not getattr(config, "use_timm_backbone", False)


@pytest.mark.parametrize("config_class", [TimmBackboneConfig, TimmWrapperConfig])
def test_a_model_of_timm_names_a_tiny_one(config_class: Any) -> None:
    config = tiny_config(config_class)
    assert type(config) is config_class
    assert "test_resnet" in (getattr(config, "backbone", ""), getattr(config, "architecture", ""))
    assert tiny_config(config).to_dict() == config.to_dict()


def test_later_attempts_are_no_smaller() -> None:
    sizes = [tiny_config(LlamaConfig, attempt=attempt).hidden_size for attempt in range(ATTEMPTS)]
    assert sizes == sorted(sizes)
    assert sizes[-1] == LlamaConfig().hidden_size


def test_what_a_class_leaves_to_its_checkpoints_gets_a_value() -> None:
    config: Any = EsmConfig()
    values = ("vocab_size", "pad_token_id")
    assert [getattr(config, name) for name in values] == [None, None]
    fill_open_fields(config, vocabulary=33)
    assert [getattr(config, name) for name in values] == [33, 0]
    before = LlamaConfig(pad_token_id=1)
    after = copy.deepcopy(before)
    fill_open_fields(after, vocabulary=33)
    assert after.to_dict() == before.to_dict()
