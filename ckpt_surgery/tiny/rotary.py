"""Shrink the rotary parameters of a configuration: sections and factors follow the size of a head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig

from ckpt_surgery.tiny.sizes import HEAD_DIM, HEADS, WIDTH, ShrinkContext


def assumed_rope(config: PretrainedConfig, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return rotary parameters that the model assumes by default: sections for time, height and width."""
    ignored = getattr(config, "ignore_keys_at_rope_validation", None) or ()
    rope = values.get("rope_parameters")
    if "mrope_section" in ignored and isinstance(rope, dict) and "mrope_section" not in rope:
        return {"mrope_section": [16, 24, 24]}
    return {}


def old_rope(config: PretrainedConfig, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the `rope_scaling` of a class that declares it, without what transformers 5 adds and it may check."""
    rope = getattr(config, "rope_scaling", None)
    if not isinstance(rope, dict):
        return None
    if not isinstance(getattr(type(config), "rope_scaling", None), property):
        return rope  # as it was given
    added = {"rope_theta"} if "rope_theta" in values else set()
    added |= {"rope_type"} if "type" in rope or rope.get("rope_type") == "default" else set()
    return {name: value for name, value in rope.items() if name not in added} or None


def shrunk_rope(value: dict[str, Any], context: ShrinkContext) -> dict[str, Any]:
    """Shrink rotary parameters: sections and per-frequency factors fit the tiny number of frequencies."""
    pairs = _rotary_pairs(value, context.values) if context.attempt <= 2 else 0
    new: dict[str, Any] = {}
    nested = any(isinstance(item, dict) for item in value.values())
    for key, item in {**({} if nested or not value else context.rope), **value}.items():
        if isinstance(item, dict):
            new[key] = shrunk_rope(item, context)
        elif pairs and key in ("short_factor", "long_factor"):
            new[key] = (list(item) * pairs)[:pairs]
        elif pairs and key == "mrope_section" and item:
            sections, total = list(item), sum(item)
            if total != pairs:
                sections = [max(1, section * pairs // total) for section in sections]
                sections[-1] += pairs - sum(sections)
            new[key] = sections
        else:
            new[key] = item
    return new


def _rotary_pairs(rope: Mapping[str, Any], values: Mapping[str, Any]) -> int:
    head = values.get("head_dim")
    if not isinstance(head, int):
        width, heads = values.get("hidden_size"), values.get("num_attention_heads")
        if not isinstance(width, int) or not isinstance(heads, int):
            return 0
        head = min(width, WIDTH) // min(heads, HEADS)
    share = rope.get("partial_rotary_factor", values.get("partial_rotary_factor")) or 1.0
    return int(min(head, HEAD_DIM) * share) // 2
