"""Make text, pixels, audio and series for a forward, by the names in its signature and the configuration's sizes.

What single families need on top is in `model_patches`, and made in `forms`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from ckpt_surgery.model_patches import family_tables
from ckpt_surgery.tiny.arguments import ForwardArguments
from ckpt_surgery.tiny.forms import made
from ckpt_surgery.tiny.placeholders import place_all

_AUDIO_LAYOUTS = 3


def candidates(model: Any, batch: int, length: int, seed: int, heads: tuple[str, ...]) -> Iterator[ForwardArguments]:
    """Yield arguments without labels; several if the name of an audio argument does not tell its layout."""
    for layout in range(_AUDIO_LAYOUTS):
        arguments = ForwardArguments(model, batch, length, seed)
        _add_text(arguments, heads)
        _add_pixels(arguments)
        _add_audio(arguments, layout)
        _add_series(arguments)
        _add_required(arguments)
        # what the family of the model says, for its class or else for its model type
        inputs = family_tables().inputs
        own = inputs.get(type(model).__name__) or inputs.get(arguments.config.model_type, {})
        for name, form in own.items():
            argument = name.removeprefix("+")
            if form is None:
                arguments.values.pop(argument, None)
            elif argument in arguments.names or argument != name:
                arguments.values[argument] = made(form, argument, arguments) if isinstance(form, str) else form
        place_all(arguments)
        yield arguments
        if "input_features" not in arguments.values and "input_values" not in arguments.values:
            return


def _add_text(arguments: ForwardArguments, heads: tuple[str, ...]) -> None:
    if "input_ids" in arguments.names:
        shape = (
            (arguments.batch, 2, arguments.length)
            if "MULTIPLE_CHOICE" in heads
            else (arguments.batch, arguments.length)
        )
        arguments.values["input_ids"] = arguments.tokens(shape)
        eos = arguments.find("eos_token_id")
        if isinstance(eos, int) and "MULTIPLE_CHOICE" not in heads:
            arguments.values["input_ids"][:, -1] = eos
        if "attention_mask" in arguments.names:
            arguments.values["attention_mask"] = torch.ones(shape, dtype=torch.long)
    if "decoder_input_ids" in arguments.names:
        arguments.values["decoder_input_ids"] = arguments.tokens((arguments.batch, arguments.length))
    if "bbox" in arguments.names:
        arguments.values["bbox"] = arguments.boxes((arguments.batch, arguments.length))


def _add_pixels(arguments: ForwardArguments) -> None:
    height, width = arguments.image()
    if "pixel_values" in arguments.names:
        if "image_grid_thw" in arguments.names:
            patches, grid = arguments.flat_patches()
            arguments.values |= {"pixel_values": patches, "image_grid_thw": grid}
            return
        if "spatial_shapes" in arguments.names:  # one row of patches per image, as the Siglip2 towers take them
            patch = arguments.find("patch_size", default=8, part="vision")
            side = 4
            row = (arguments.batch, side * side, arguments.channels() * patch * patch)
            arguments.values["pixel_values"] = arguments.floats(row)
            arguments.values["spatial_shapes"] = torch.tensor([[side, side]] * arguments.batch)
            name = "pixel_attention_mask" if "pixel_attention_mask" in arguments.names else "attention_mask"
            arguments.values[name] = torch.ones(row[:2], dtype=torch.long)
            return
        shape: tuple[int, ...] = (arguments.batch, arguments.channels(), height, width)
        frames = arguments.find("num_frames", default=0)
        if frames and arguments.main_input == "pixel_values" and "input_ids" not in arguments.names:
            shape = (arguments.batch, frames, arguments.channels(), height, width)
        arguments.values["pixel_values"] = arguments.floats(shape)
    for name in ("pixel_values_videos", "pixel_values_video"):
        if arguments.requires(name) and "pixel_values" not in arguments.values:
            frames = arguments.find("num_frames", "frames_per_clip", default=4)
            arguments.values[name] = arguments.floats((arguments.batch, frames, arguments.channels(), height, width))


def _add_audio(arguments: ForwardArguments, layout: int) -> None:
    """Add a waveform, or audio features: by `layout` with the channels first, last, or as an image."""
    mels = arguments.mels()
    if "input_values" in arguments.names and "past_values" not in arguments.names:
        # the strided convolutions reduce a waveform of this length to 24 time steps
        strides = arguments.find("conv_stride", "upsampling_ratios", "downsampling_ratios")
        length = math.prod(strides) * 24 + 80 if isinstance(strides, (list, tuple)) else 4000
        frames = int(arguments.find("max_length", default=64))
        waves = [(arguments.batch, length), (arguments.batch, 1, length), (arguments.batch, frames, mels)]
        arguments.values["input_values"] = arguments.floats(waves[layout])
    elif "input_features" in arguments.names:
        positions = arguments.find("max_source_positions", default=None, part="audio")
        first = isinstance(positions, int)  # Whisper and its heirs take twice as many frames as positions
        frames = 2 * positions if first else 64
        both = [(arguments.batch, mels, frames), (arguments.batch, 64, mels)]
        shape = [*(both if first else both[::-1]), (arguments.batch, 1, 64, mels)][layout]
        arguments.values["input_features"] = arguments.floats(shape)
        steps = shape[-1] if shape[1] == mels else shape[1]
        for name in ("feature_attention_mask", "input_features_mask"):
            if name in arguments.names:
                arguments.values[name] = torch.ones((arguments.batch, steps), dtype=torch.long)


def _add_series(arguments: ForwardArguments) -> None:
    if "past_values" not in arguments.names:
        return
    context = int(arguments.find("context_length", default=16) or 16)
    lags = arguments.find("lags_sequence", default=[0])
    channels = arguments.find("num_input_channels", default=0)
    past = context + (max(lags) if "past_time_features" in arguments.names else 0)
    shape = (arguments.batch, past, channels) if channels else (arguments.batch, past)
    arguments.values["past_values"] = arguments.floats(shape)
    if "past_time_features" in arguments.names:
        features = max(1, int(arguments.find("num_time_features", default=1)))
        arguments.values["past_time_features"] = arguments.floats((arguments.batch, past, features))
        arguments.values["future_time_features"] = arguments.floats((arguments.batch, arguments.horizon(), features))
        arguments.values["past_observed_mask"] = torch.ones(shape, dtype=torch.bool)


def _add_required(arguments: ForwardArguments) -> None:
    """Add what the forward still requires: hidden states of a tower, patches, masks."""
    if "grid_thw" in arguments.names and "input_ids" not in arguments.values:
        patches, grid = arguments.flat_patches()
        first = next(iter(arguments.parameters))
        arguments.values |= {first: patches, "grid_thw": grid}
    states = next((n for n in ("hidden_states", "inputs_embeds") if arguments.requires(n)), "hidden_states")
    if not arguments.values and states in arguments.names:
        width = int(arguments.find("hidden_size", default=64))
        arguments.values[states] = arguments.floats((arguments.batch, arguments.length, width))
    if arguments.requires("bool_masked_pos") and "pixel_values" in arguments.values:
        arguments.values["bool_masked_pos"] = arguments.alternate_patches()
    for name, parameter in arguments.parameters.items():
        needed = parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        if needed and name not in arguments.values and name.endswith("_mask"):
            arguments.values[name] = torch.ones((arguments.batch, arguments.length), dtype=torch.long)
