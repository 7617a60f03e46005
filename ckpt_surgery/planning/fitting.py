"""Parts of a default configuration that do not fit together, as the defaults of each class are written by themselves.

A model type whose defaults build no model that runs is asked for once more with the fields below. What a checkpoint
was released with is in its config.json alone, and that is never changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PretrainedConfig

from ckpt_surgery.tiny.configs import nested_configs, text_config

_TEXT_WIDTHS = ("out_hidden_size", "output_dim", "text_hidden_size")
"""The width of the features that a part hands to the text."""
_HALF_ROTATED = {"rope_parameters": {"partial_rotary_factor": 0.5}}
"""The sections of the positions that these models assume cover half of a head."""
_PERCEPTION_ENCODER = {"architecture": "vit_pe_core_large_patch14_336", "model_args": {"embed_dim": 1024}}
_FITTING: Mapping[str, Mapping[str, Any]] = {
    "aya_vision": {"vision_config": {"num_attention_heads": 16, "image_size": 364}},
    "edgetam_vision_model": {"backbone_config": {"architecture": "repvit_m1"}},
    "glm46v_text": _HALF_ROTATED,
    "glm4v_moe_text": {"head_dim": 128},
    "glm4v_text": _HALF_ROTATED,
    "glm_image_text": _HALF_ROTATED,
    "granite_speech": {"projector_config": {"encoder_hidden_size": 1024}},
    "granite_speech_encoder": {},
    "granite_speech_plus": {"projector_config": {"encoder_hidden_size": 1024}},
    "granite_speech_plus_encoder": {},
    "hunyuan_vl_text": {"rope_parameters": {"mrope_section": [16, 16, 16, 16]}},
    "idefics3_vision": {"image_size": 364, "patch_size": 14},
    "janus_vision_model": {"projection_dim": 4096},
    "llama4_vision_model": {"hidden_size": 1408, "vision_output_dim": 4096},
    "lw_detr": {"projector_scale_factors": [1.0], "projector_in_channels": [256], "num_feature_levels": 1},
    "modernvbert": {"vision_config": {"image_size": 512}},
    "ovis2": {"hidden_size": 4096},
    "perception_lm": {"vision_config": _PERCEPTION_ENCODER},
    "qwen2_vl_vision": {"hidden_size": 8192},
    "qwen3_omni_moe_text": {"num_attention_heads": 32},
    "rf_detr_dinov2": {"image_size": 560},
    "smolvlm_vision": {"image_size": 364, "patch_size": 14},
    "uvdoc_backbone": {"out_features": [f"stage{i}" for i in range(1, 7)]},
}
"""Fields by model type of a part, in place of the rule for `_TEXT_WIDTHS`; a dictionary changes what it names."""


def fit_parts(config: PretrainedConfig) -> tuple[str, ...]:
    """Change the fields of a default configuration that keep its parts from fitting, and name each with its values."""
    text = text_config(config)
    width = getattr(text, "hidden_size", 0) if text is not config else 0
    changed: list[str] = []
    for path, part in list(_parts(config, "")):
        fields = _FITTING.get(part.model_type)
        if fields is None:
            fields = {n: width for n in _TEXT_WIDTHS if width and type(getattr(part, n, None)) is int}
        changed += _set(part, fields, path)
    return tuple(changed)


def _set(part: Any, fields: Mapping[str, Any], path: str) -> list[str]:
    """Set fields of a part, those inside a dictionary or a configuration one by one."""
    changed: list[str] = []
    for name, new in fields.items():
        old = getattr(part, name, None)
        if isinstance(new, Mapping) and isinstance(old, PretrainedConfig):
            changed += _set(old, new, f"{path}{name}.")
            continue
        value = {**(old or {}), **new} if isinstance(new, Mapping) else new
        if value != old:
            setattr(part, name, value)
            changed.append(f"{path}{name} {old} -> {value}")
    return changed


def _parts(config: PretrainedConfig, path: str) -> Iterator[tuple[str, PretrainedConfig]]:
    """`config` and every configuration inside it, each after the names that lead to it."""
    yield path, config
    for name, part in nested_configs(config):
        yield from _parts(part, f"{path}{name}.")
