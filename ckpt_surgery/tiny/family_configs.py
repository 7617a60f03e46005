"""Configurations that need more than shrinking: classes without usable defaults, families with fixed values, timm."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from transformers import PretrainedConfig

from ckpt_surgery.tiny.configs import all_configs, nested_configs
from ckpt_surgery.tiny.families import CONFIG, SHOWN


def default_config(config_class: type) -> PretrainedConfig:
    """`config_class` built from its defaults, or from default parts where the class requires them."""
    build = _DEFAULTS.get(str(getattr(config_class, "model_type", "")))
    config = build(config_class) if build else config_class()
    for part in all_configs(config):
        for name, value in SHOWN.get(part.model_type, {}).items():
            setattr(part, name, value)
    return config


def family_changes(
    config: PretrainedConfig, changed: Mapping[str, Any], declared: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields that the family of `config` needs changed, and those that replace a timm backbone."""
    own = CONFIG.get(config.model_type, {})
    new = {n.removeprefix("+"): v for n, v in own.items() if n in declared or n in changed or n.startswith("+")}
    for name, value in new.items():
        if isinstance(value, dict) and "model_type" in (changed.get(name) or {}):
            new[name] = {**changed[name], **value}
    if "use_mamba_kernels" in changed:
        new["use_mamba_kernels"] = False  # they run on CUDA only
    if changed.get("use_timm_backbone") or changed.get("backbone"):
        new |= {"use_timm_backbone": False, "backbone": None, "use_pretrained_backbone": False}
        new |= {"backbone_config": tiny_backbone().to_dict(), "backbone_kwargs": None}
    return new


def is_timm(config: PretrainedConfig) -> bool:
    """Whether timm provides the backbone of this configuration, and no tiny one."""
    return timm_field(config) != "" and not str(getattr(config, timm_field(config))).startswith("test_")


def timm_field(config: PretrainedConfig) -> str:
    """The field that names a model of timm; empty where the configuration is of no such model."""
    return {"timm_backbone": "backbone", "timm_wrapper": "architecture"}.get(type(config).model_type, "")


def tiny_timm(config: PretrainedConfig) -> PretrainedConfig:
    """`config` with a tiny ResNet of timm in place of the model that it names."""
    tiny = copy.deepcopy(config)
    setattr(tiny, timm_field(config), "test_resnet")
    tiny.model_args, tiny.use_pretrained_backbone = None, False
    return tiny


def without_timm(config: PretrainedConfig) -> PretrainedConfig:
    """`config`, with tiny backbones of transformers for the timm backbones that its parts insist on."""
    for part in list(all_configs(config)):
        for name, nested in list(nested_configs(part)):
            if is_timm(nested):
                setattr(part, name, tiny_backbone())
    return config


def tiny_backbone() -> PretrainedConfig:
    """A ResNet of transformers that replaces a timm backbone."""
    from transformers import ResNetConfig

    return ResNetConfig(
        embedding_size=64,
        hidden_sizes=[64, 64, 64, 64],
        depths=[2, 2, 2, 2],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )


def _text_pair(config_class: Any) -> PretrainedConfig:
    from transformers import BertConfig

    return config_class(
        encoder=BertConfig().to_dict(),
        decoder=BertConfig(is_decoder=True, add_cross_attention=True).to_dict(),
        decoder_start_token_id=1,
        pad_token_id=0,
    )


def _image_to_text(config_class: Any) -> PretrainedConfig:
    from transformers import BertConfig, ViTConfig

    return config_class(
        encoder=ViTConfig().to_dict(),
        decoder=BertConfig(is_decoder=True, add_cross_attention=True).to_dict(),
        decoder_start_token_id=1,
        pad_token_id=0,
    )


def _speech_to_text(config_class: Any) -> PretrainedConfig:
    from transformers import BertConfig, Wav2Vec2Config

    return config_class(
        encoder=Wav2Vec2Config().to_dict(),
        decoder=BertConfig(is_decoder=True, add_cross_attention=True).to_dict(),
        decoder_start_token_id=1,
        pad_token_id=0,
    )


def _music(config_class: Any) -> PretrainedConfig:
    from transformers import EncodecConfig, T5Config

    decoder = config_class.sub_configs["decoder"]
    return config_class(
        text_encoder=T5Config().to_dict(), audio_encoder=EncodecConfig().to_dict(), decoder=decoder().to_dict()
    )


def _retrieval(config_class: Any) -> PretrainedConfig:
    from transformers import BartConfig, DPRConfig

    return config_class(question_encoder=DPRConfig().to_dict(), generator=BartConfig().to_dict())


def _vision_and_text(config_class: Any) -> PretrainedConfig:
    from transformers import BertConfig, ViTConfig

    return config_class(vision_config=ViTConfig().to_dict(), text_config=BertConfig().to_dict())


_DEFAULTS: dict[str, Callable[[type], PretrainedConfig]] = {
    "encoder-decoder": _text_pair,
    "musicgen": _music,
    "musicgen_melody": _music,
    "rag": _retrieval,
    "speech-encoder-decoder": _speech_to_text,
    "vision-encoder-decoder": _image_to_text,
    "vision-text-dual-encoder": _vision_and_text,
}
"""How to build a configuration from its class alone, by model type."""
