"""Put image, video and audio tokens into the text, as many as the model makes features of each."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from ckpt_surgery.tiny.arguments import ForwardArguments, on_device

PLACEHOLDERS = (
    "image_token_id",
    "image_token_index",
    "video_token_id",
    "video_token_index",
    "audio_token_id",
    "audio_token_index",
)
"""Configuration attributes that hold the id of a placeholder token."""

_SOURCES = {
    "image": ("pixel_values",),
    "audio": ("input_features", "input_values", "audio_input_ids"),
    "video": ("pixel_values_videos",),
}
"""The arguments whose features replace the placeholders, by the kind of placeholder."""


def place_all(arguments: ForwardArguments) -> None:
    """Put placeholders for the images, videos and audio in `arguments` into their text."""
    if "input_ids" not in arguments.values:
        return
    for kind, sources in _SOURCES.items():
        token = arguments.find(f"{kind}_token_id", f"{kind}_token_index")
        if not any(source in arguments.values for source in sources) or not isinstance(token, int):
            continue
        count = _feature_count(arguments, kind)
        if count:
            place_tokens(arguments, arguments.values, token, count // arguments.batch)
    if "mm_token_type_ids" in arguments.names:
        ids = arguments.values["input_ids"]
        arguments.values["mm_token_type_ids"] = (ids == arguments.find("image_token_id", default=-1)).long()


def place_tokens(arguments: ForwardArguments, values: dict[str, Any], token: int, count: int) -> None:
    """Put `count` placeholders per sample after the first token of the text in `values`, and adapt its masks."""
    before = values["input_ids"].cpu()
    plain = torch.where(before == token, arguments.tokens(before.shape), before)[:, : arguments.length]
    added = torch.full((plain.shape[0], count), token)
    values["input_ids"] = torch.cat([plain[:, :1], added, plain[:, 1:]], dim=1)
    for name in ("attention_mask", "token_type_ids"):
        if name in values:
            values[name] = torch.full_like(values["input_ids"], int(name == "attention_mask"))
    for name in ("cross_attention_mask", "image_attention_mask"):
        if name in values:
            rest = values[name].shape[2:]
            values[name] = torch.ones((*values["input_ids"].shape, *rest), dtype=torch.long)
    if "mm_token_type_ids" in values:
        values["mm_token_type_ids"] = (values["input_ids"] == token).long()
    if isinstance(values.get("labels"), Tensor) and values["labels"].shape == before.shape:
        values["labels"] = values["input_ids"].clone()


def _feature_count(arguments: ForwardArguments, kind: str) -> int:
    """Count the features that the model makes of the pixels or audio in `arguments`; if unknown, one per sample."""
    for part in (arguments.model, getattr(arguments.model, "model", None)):
        method = getattr(part, f"get_{kind}_features", None)
        accepted = inspect.signature(method).parameters.keys() - {"input_ids"} if method else set()
        values = {name: value for name, value in arguments.values.items() if name in accepted}
        if method and values:
            break
    else:
        return arguments.batch
    try:
        with torch.no_grad():
            features = method(**on_device(values, arguments.device))
    except Exception:  # the forward will say what is missing
        return arguments.batch
    return _rows(features) or arguments.batch


def _rows(features: Any) -> int:
    features = getattr(features, "pooler_output", None) if hasattr(features, "pooler_output") else features
    if isinstance(features, (list, tuple)):
        return sum(_rows(item) for item in features)
    if isinstance(features, Tensor) and features.ndim >= 2:
        return features.numel() // features.shape[-1]
    return 0
