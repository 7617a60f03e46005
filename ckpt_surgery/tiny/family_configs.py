"""Configurations that need more than shrinking: classes without usable defaults, families with fixed values, timm."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig

from ckpt_surgery.model_patches import family_tables
from ckpt_surgery.tiny.configs import all_configs


def default_config(config_class: type) -> PretrainedConfig:
    """Build `config_class` from its defaults, or from default parts where the class requires them."""
    facts = family_tables()
    given = facts.defaults.get(str(getattr(config_class, "model_type", "")), {})
    config: PretrainedConfig = config_class(**copy.deepcopy(dict(given)))
    for part in all_configs(config):
        for name, value in facts.shown.get(part.model_type, {}).items():
            setattr(part, name, value)
    return config


def family_changes(
    config: PretrainedConfig, changed: Mapping[str, Any], declared: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields that the family of `config` needs changed, and those that replace a timm backbone."""
    own = family_tables().tiny.get(config.model_type, {})
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
    """Tell whether timm provides the backbone of this configuration, and no tiny one."""
    return timm_field(config) != "" and not str(getattr(config, timm_field(config))).startswith("test_")


def timm_field(config: PretrainedConfig) -> str:
    """Return the field that names a model of timm; empty where the configuration is of no such model."""
    return {"timm_backbone": "backbone", "timm_wrapper": "architecture"}.get(type(config).model_type, "")


def tiny_backbone() -> PretrainedConfig:
    """Make a ResNet of transformers that replaces a timm backbone."""
    from transformers import ResNetConfig

    return ResNetConfig(
        embedding_size=64,
        hidden_sizes=[64, 64, 64, 64],
        depths=[2, 2, 2, 2],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
