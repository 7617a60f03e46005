"""Keyword arguments for a model's forward, drawn from a seed and tried on the model itself.

General rules by the names in the forward's signature; what single families need is in `families`.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ckpt_surgery.errors import CannotBuild
from ckpt_surgery.measure.restore import left_as_found
from ckpt_surgery.runtime.rng import random_state_kept
from ckpt_surgery.tiny import families, labels
from ckpt_surgery.tiny.catalog import model_classes
from ckpt_surgery.tiny.draft import Draft

_TRIES = 16


def tiny_inputs(model: Any, *, batch: int = 2, length: int = 16, seed: int = 0) -> dict[str, Any]:
    """Keyword arguments with which `model`'s forward runs in training mode, with a loss where it has one.

    `batch` samples of `length` tokens; images, sound and series have the size that the configuration names, as
    many image tokens stand in the text as the model's vision part makes. Tensors lie on the device of the model's
    first parameter; floats have its dtype and require no gradient. The same seed gives the same tensors. The
    model runs a few times and is left as found, the random number generators too. Raises CannotBuild where no
    try succeeds.
    """
    entry = model_classes().get(type(model).__name__)
    heads = entry.heads if entry else ()
    first: BaseException | None = None
    tries = 0
    with left_as_found(model):
        model.train()
        for base in _bases(model, batch, length, seed, heads):
            for extra in labels.candidates(base, heads):
                values, error = _settled(model, base, extra)
                if values is not None:
                    return values
                first = first or error
                tries += 1
                if tries >= _TRIES:
                    break
    raise CannotBuild(type(model).__name__, "forward", first or "no inputs known")


# --- trying -----------------------------------------------------------------------------------------------


def _settled(model: Any, base: Draft, extra: dict[str, Any]) -> tuple[dict[str, Any] | None, BaseException | None]:
    """The arguments with which the forward runs, after what its error asks for; else its error."""
    values = {**base.values, **extra}
    if "labels" in extra and "input_ids" in base.values and model.config.is_encoder_decoder:
        values.pop("decoder_input_ids", None)
    error: BaseException | None = None
    for _ in range(3):
        values = _moved(values, base.device)
        try:
            loss = _loss(model, values)
        except Exception as raised:  # every model has its own way to refuse
            error = raised
            if not _repaired(base, values, str(raised)):
                return None, error
            continue
        if extra and (loss is None or not bool(torch.isfinite(loss).all())):
            return None, ValueError("the loss is not finite" if loss is not None else "there is no loss")
        return values, None
    return None, error


def _moved(value: Any, device: torch.device) -> Any:
    """`value` with its tensors on `device`."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: _moved(item, device) for name, item in value.items()}
    return [_moved(item, device) for item in value] if isinstance(value, list) else value


def _loss(model: Any, values: dict[str, Any]) -> Tensor | None:
    with torch.no_grad(), random_state_kept():
        torch.manual_seed(0)
        output = model(**values)
    loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    return loss if isinstance(loss, Tensor) else None


_MISMATCH = re.compile(r"tokens:?\s*(?:torch\.Size\()?\[?(\d+)[^\d]+(?:features|embeddings)[^\d]*(\d+)", re.I)


def _repaired(base: Draft, values: dict[str, Any], message: str) -> bool:
    """Put as many image tokens into the text as the error says there are features."""
    if "labels" in values and "decoder_input_ids" not in values and "decoder_input_ids" in base.values:
        values["decoder_input_ids"] = base.values["decoder_input_ids"]  # the class does not shift labels itself
        return True
    pixels = values.get("pixel_values")
    if "expected 5, got 4" in message and isinstance(pixels, Tensor) and pixels.ndim == 4:
        frames = int(base.find("num_frames", default=1)) or 1
        values["pixel_values"] = pixels.unsqueeze(1).repeat(1, frames, 1, 1, 1)
        return True
    if "both input_ids and inputs_embeds" in message and "input_features" in values:
        return values.pop("input_ids", None) is not None
    match = _MISMATCH.search(message)
    if match is None or "input_ids" not in values:
        return False
    has, wants = int(match[1]), int(match[2])
    for name in _PLACEHOLDERS:
        token = base.find(name)
        if isinstance(token, int) and int((values["input_ids"] == token).sum()) == has and wants != has:
            _place(base, values, token, wants // base.batch)
            return True
    return False


_PLACEHOLDERS = (
    "image_token_id",
    "image_token_index",
    "video_token_id",
    "video_token_index",
    "audio_token_id",
    "audio_token_index",
)


def _place(draft: Draft, values: dict[str, Any], token: int, count: int) -> None:
    """`count` placeholders per sample after the first token, in front of the plain text."""
    before = values["input_ids"].cpu()
    plain = torch.where(before == token, draft.tokens(before.shape), before)[:, : draft.length]
    places = torch.full((plain.shape[0], count), token)
    values["input_ids"] = torch.cat([plain[:, :1], places, plain[:, 1:]], dim=1)
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


# --- building ---------------------------------------------------------------------------------------------


def _bases(model: Any, batch: int, length: int, seed: int, heads: tuple[str, ...]) -> Iterator[Draft]:
    """Arguments without labels; more than one where the layout of a feature cannot be told from its name."""
    own = families.INPUTS.get(model.config.model_type)
    for layout in range(3):
        draft = Draft(model, batch, length, seed)
        _text(draft, heads)
        _pixels(draft)
        _audio(draft, layout)
        _series(draft)
        _missing(draft)
        if own:
            own(draft)
        _placeholders(draft)
        yield draft
        if "input_features" not in draft.values and "input_values" not in draft.values:
            return


def _wanted(draft: Draft, name: str) -> bool:
    """Whether the forward has this argument and needs it: it is the main one, or has no default."""
    parameter = draft.parameters.get(name)
    if parameter is None:
        return False
    return name == draft.model.main_input_name or parameter.default is parameter.empty


def _text(draft: Draft, heads: tuple[str, ...]) -> None:
    if "input_ids" in draft.names:
        shape = (draft.batch, 2, draft.length) if "MULTIPLE_CHOICE" in heads else (draft.batch, draft.length)
        draft.values["input_ids"] = draft.tokens(shape)
        eos = draft.find("eos_token_id")
        if isinstance(eos, int) and "MULTIPLE_CHOICE" not in heads:
            draft.values["input_ids"][:, -1] = eos
        if "attention_mask" in draft.names:
            draft.values["attention_mask"] = torch.ones(shape, dtype=torch.long)
    if "decoder_input_ids" in draft.names and draft.config.is_encoder_decoder:
        draft.values["decoder_input_ids"] = draft.tokens((draft.batch, draft.length))
    if "bbox" in draft.names:
        corner = draft.integers((draft.batch, draft.length, 2), 8)
        draft.values["bbox"] = torch.cat([corner, corner + 4], dim=-1)


def _pixels(draft: Draft) -> None:
    height, width = draft.image()
    if "pixel_values" in draft.names and getattr(draft.config, "vision_config", ...) is not None:
        if "image_grid_thw" in draft.names:
            patches, grid = _flat_patches(draft)
            draft.values |= {"pixel_values": patches, "image_grid_thw": grid}
            return
        if "spatial_shapes" in draft.names:
            _packed_patches(draft)
            return
        shape: tuple[int, ...] = (draft.batch, draft.channels(), height, width)
        frames = draft.find("num_frames", default=0)
        if frames and draft.model.main_input_name == "pixel_values" and "input_ids" not in draft.names:
            shape = (draft.batch, frames, draft.channels(), height, width)
        draft.values["pixel_values"] = draft.floats(shape)
    for name in ("pixel_values_videos", "pixel_values_video"):
        if _wanted(draft, name) and "pixel_values" not in draft.values:
            frames = draft.find("num_frames", "frames_per_clip", default=4)
            draft.values[name] = draft.floats((draft.batch, frames, draft.channels(), height, width))


def _packed_patches(draft: Draft) -> None:
    """Patches in a row per image, as the Siglip2 towers take them."""
    patch = draft.find("patch_size", default=8, part="vision")
    side = 4
    shape = (draft.batch, side * side, draft.channels() * patch * patch)
    draft.values["pixel_values"] = draft.floats(shape)
    draft.values["spatial_shapes"] = torch.tensor([[side, side]] * draft.batch)
    name = "pixel_attention_mask" if "pixel_attention_mask" in draft.names else "attention_mask"
    draft.values[name] = torch.ones(shape[:2], dtype=torch.long)


def _flat_patches(draft: Draft) -> tuple[Tensor, Tensor]:
    patch = draft.find("patch_size", default=8, part="vision")
    frames = draft.find("temporal_patch_size", "patch_temporal", default=1, part="vision")
    side = 2 * int(draft.find("spatial_merge_size", "merge_size", default=2, part="vision"))
    grid = torch.tensor([[1, side, side]] * draft.batch)
    count = draft.batch * side * side
    return draft.floats((count, draft.channels() * frames * patch * patch)), grid


def _audio(draft: Draft, layout: int) -> None:
    """A waveform, or its features: by `layout` with the channels first or last, or as an image."""
    mels = draft.mels()
    if "input_values" in draft.names and "past_values" not in draft.names:
        length, frames = _samples(draft), int(draft.find("max_length", default=64))
        waves = [(draft.batch, length), (draft.batch, 1, length), (draft.batch, frames, mels)]
        draft.values["input_values"] = draft.floats(waves[layout])
    elif "input_features" in draft.names and getattr(draft.config, "audio_config", ...) is not None:
        positions = draft.find("max_source_positions", default=None, part="audio")
        first = isinstance(positions, int)  # Whisper and its heirs take twice as many frames as positions
        frames = 2 * positions if first else 64
        both = [(draft.batch, mels, frames), (draft.batch, 64, mels)]
        shape = [*(both if first else both[::-1]), (draft.batch, 1, 64, mels)][layout]
        draft.values["input_features"] = draft.floats(shape)
        steps = shape[-1] if shape[1] == mels else shape[1]
        for name in ("feature_attention_mask", "input_features_mask"):
            if name in draft.names:
                draft.values[name] = torch.ones((draft.batch, steps), dtype=torch.long)


def _samples(draft: Draft) -> int:
    """Samples of a waveform: 24 steps of what the strided convolutions leave."""
    strides = draft.find("conv_stride", "upsampling_ratios", "downsampling_ratios")
    if isinstance(strides, (list, tuple)):
        return math.prod(strides) * 24 + 80
    return 4000


def _series(draft: Draft) -> None:
    if "past_values" not in draft.names:
        return
    context = int(draft.find("context_length", default=16) or 16)
    lags = draft.find("lags_sequence", default=[0])
    channels = draft.find("num_input_channels", default=0)
    past = context + (max(lags) if "past_time_features" in draft.names else 0)
    shape = (draft.batch, past, channels) if channels else (draft.batch, past)
    draft.values["past_values"] = draft.floats(shape)
    if "past_time_features" in draft.names:
        features = max(1, int(draft.find("num_time_features", default=1)))
        draft.values["past_time_features"] = draft.floats((draft.batch, past, features))
        draft.values["future_time_features"] = draft.floats((draft.batch, draft.horizon(), features))
        draft.values["past_observed_mask"] = torch.ones(shape, dtype=torch.bool)


def _missing(draft: Draft) -> None:
    """Arguments without default that nothing above knows: hidden states of a tower, by their names."""
    if "grid_thw" in draft.names and "input_ids" not in draft.values:
        patches, grid = _flat_patches(draft)
        first = next(iter(draft.parameters))
        draft.values |= {first: patches, "grid_thw": grid}
    if not draft.values and "hidden_states" in draft.names:
        draft.values["hidden_states"] = draft.floats(
            (draft.batch, draft.length, int(draft.find("hidden_size", default=64)))
        )
    if _wanted(draft, "bool_masked_pos") and "pixel_values" in draft.values:
        draft.values["bool_masked_pos"] = draft.half_of_the_patches()
    for name, parameter in draft.parameters.items():
        needed = parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        if needed and name not in draft.values and name.endswith("_mask"):
            draft.values[name] = torch.ones((draft.batch, draft.length), dtype=torch.long)


def _placeholders(draft: Draft) -> None:
    """Image, video and audio tokens in the text, as many as the model's own part gives features."""
    if "input_ids" not in draft.values:
        return
    for kind, given in (("image", "pixel_values"), ("audio", "input_features"), ("video", "pixel_values_videos")):
        token = draft.find(f"{kind}_token_id", f"{kind}_token_index")
        if given not in draft.values or not isinstance(token, int):
            continue
        count = _feature_count(draft, kind)
        if count:
            _place(draft, draft.values, token, count // draft.batch)
    if "mm_token_type_ids" in draft.names:
        ids = draft.values["input_ids"]
        draft.values["mm_token_type_ids"] = (ids == draft.find("image_token_id", default=-1)).long()


def _feature_count(draft: Draft, kind: str) -> int:
    """How many features the model makes of the pixels or sound in the draft; 1 where it cannot be asked."""
    asked = next((m for m in _parts(draft.model) if hasattr(m, f"get_{kind}_features")), None)
    if asked is None:
        return draft.batch
    method = getattr(asked, f"get_{kind}_features")
    taken = {n: v for n, v in draft.values.items() if n in inspect.signature(method).parameters and n != "input_ids"}
    try:
        with torch.no_grad():
            found = method(**_moved(taken, draft.device))
    except Exception:  # the forward will say what it wants
        return draft.batch
    return _rows(found) or draft.batch


def _parts(model: Any) -> Iterator[Any]:
    yield model
    if hasattr(model, "model"):
        yield model.model


def _rows(found: Any) -> int:
    found = getattr(found, "pooler_output", None) if hasattr(found, "pooler_output") else found
    if isinstance(found, (list, tuple)):
        return sum(_rows(item) for item in found)
    if isinstance(found, Tensor) and found.ndim >= 2:
        return found.numel() // found.shape[-1]
    return 0
