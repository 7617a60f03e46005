"""Make text, pixels, audio and series for a forward, by the names in its signature and the configuration's sizes.

What single families need besides is in `model_patches`; `forms` makes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from ckpt_surgery.model_patches import family_tables
from ckpt_surgery.tiny.arguments import ForwardArguments
from ckpt_surgery.tiny.forms import make_input
from ckpt_surgery.tiny.placeholders import place_all

_AUDIO_LAYOUTS = 3


class DrawnArguments(ForwardArguments):
    """The arguments that follow from the names in a forward's signature: text, pixels, audio and series.

    `heads` are those of the model. The name of an audio argument does not tell its `layout`: with the channels first,
    last, or as an image.
    """

    def __init__(self, model: Any, batch: int, length: int, seed: int, heads: tuple[str, ...], layout: int) -> None:
        super().__init__(model, batch, length, seed)
        self._add_text(heads)
        self._add_pixels()
        self._add_audio(layout)
        self._add_series()
        self._add_required()

    def _add_text(self, heads: tuple[str, ...]) -> None:
        if "input_ids" in self.names:
            shape = (self.batch, 2, self.length) if "MULTIPLE_CHOICE" in heads else (self.batch, self.length)
            self.values["input_ids"] = self.tokens(shape)
            eos = self.find("eos_token_id")
            if isinstance(eos, int) and "MULTIPLE_CHOICE" not in heads:
                self.values["input_ids"][:, -1] = eos
            if "attention_mask" in self.names:
                self.values["attention_mask"] = torch.ones(shape, dtype=torch.long)
        if "decoder_input_ids" in self.names:
            self.values["decoder_input_ids"] = self.tokens((self.batch, self.length))
        if "bbox" in self.names:
            self.values["bbox"] = self.boxes((self.batch, self.length))

    def _add_pixels(self) -> None:
        height, width = self.image()
        if "pixel_values" in self.names:
            if "image_grid_thw" in self.names:
                patches, grid = self.flat_patches()
                self.values |= {"pixel_values": patches, "image_grid_thw": grid}
                return
            if "spatial_shapes" in self.names:  # a sequence of patches per image, as Siglip2 takes them
                patch = self.find("patch_size", default=8, part="vision")
                side = 4
                row = (self.batch, side * side, self.channels() * patch * patch)
                self.values["pixel_values"] = self.floats(row)
                self.values["spatial_shapes"] = torch.tensor([[side, side]] * self.batch)
                name = "pixel_attention_mask" if "pixel_attention_mask" in self.names else "attention_mask"
                self.values[name] = torch.ones(row[:2], dtype=torch.long)
                return
            shape: tuple[int, ...] = (self.batch, self.channels(), height, width)
            frames = self.find("num_frames", default=0)
            if frames and self.main_input == "pixel_values" and "input_ids" not in self.names:
                shape = (self.batch, frames, self.channels(), height, width)
            self.values["pixel_values"] = self.floats(shape)
        for name in ("pixel_values_videos", "pixel_values_video"):
            if self.requires(name) and "pixel_values" not in self.values:
                frames = self.find("num_frames", "frames_per_clip", default=4)
                self.values[name] = self.floats((self.batch, frames, self.channels(), height, width))

    def _add_audio(self, layout: int) -> None:
        """Add a waveform, or audio features: by `layout` with the channels first, last, or as an image."""
        mels = self.mels()
        if "input_values" in self.names and "past_values" not in self.names:
            # the strided convolutions reduce a waveform of this length to 24 time steps
            strides = self.find("conv_stride", "upsampling_ratios", "downsampling_ratios")
            length = math.prod(strides) * 24 + 80 if isinstance(strides, (list, tuple)) else 4000
            frames = int(self.find("max_length", default=64))
            waves = [(self.batch, length), (self.batch, 1, length), (self.batch, frames, mels)]
            self.values["input_values"] = self.floats(waves[layout])
        elif "input_features" in self.names:
            positions = self.find("max_source_positions", default=None, part="audio")
            mels_first = isinstance(positions, int)  # models like Whisper take twice as many frames as positions
            frames = 2 * positions if mels_first else 64
            shapes = [(self.batch, mels, frames), (self.batch, 64, mels)]
            shape = [*(shapes if mels_first else shapes[::-1]), (self.batch, 1, 64, mels)][layout]
            self.values["input_features"] = self.floats(shape)
            steps = shape[-1] if shape[1] == mels else shape[1]
            for name in ("feature_attention_mask", "input_features_mask"):
                if name in self.names:
                    self.values[name] = torch.ones((self.batch, steps), dtype=torch.long)

    def _add_series(self) -> None:
        if "past_values" not in self.names:
            return
        context = int(self.find("context_length", default=16) or 16)
        lags = self.find("lags_sequence", default=[0])
        channels = self.find("num_input_channels", default=0)
        past = context + (max(lags) if "past_time_features" in self.names else 0)
        shape = (self.batch, past, channels) if channels else (self.batch, past)
        self.values["past_values"] = self.floats(shape)
        if "past_time_features" in self.names:
            features = max(1, int(self.find("num_time_features", default=1)))
            self.values["past_time_features"] = self.floats((self.batch, past, features))
            self.values["future_time_features"] = self.floats((self.batch, self.horizon(), features))
            self.values["past_observed_mask"] = torch.ones(shape, dtype=torch.bool)

    def _add_required(self) -> None:
        """Add what the forward still requires: hidden states of a tower, patches, masks."""
        if "grid_thw" in self.names and "input_ids" not in self.values:
            patches, grid = self.flat_patches()
            first = next(iter(self.parameters))
            self.values |= {first: patches, "grid_thw": grid}
        states = next((n for n in ("hidden_states", "inputs_embeds") if self.requires(n)), "hidden_states")
        if not self.values and states in self.names:
            width = int(self.find("hidden_size", default=64))
            self.values[states] = self.floats((self.batch, self.length, width))
        if self.requires("bool_masked_pos") and "pixel_values" in self.values:
            self.values["bool_masked_pos"] = self.alternate_patches()
        for name, parameter in self.parameters.items():
            needed = parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            if needed and name not in self.values and name.endswith("_mask"):
                self.values[name] = torch.ones((self.batch, self.length), dtype=torch.long)


def candidates(model: Any, batch: int, length: int, seed: int, heads: tuple[str, ...]) -> Iterator[ForwardArguments]:
    """Yield arguments without labels; several if the name of an audio argument does not tell its layout."""
    for layout in range(_AUDIO_LAYOUTS):
        arguments = DrawnArguments(model, batch, length, seed, heads, layout)
        # what `model_patches` says of its class, or else of its model type
        inputs = family_tables().inputs
        own = inputs.get(type(model).__name__) or inputs.get(arguments.config.model_type, {})
        for name, form in own.items():
            argument = name.removeprefix("+")
            if form is None:
                arguments.values.pop(argument, None)
            elif argument in arguments.names or argument != name:
                arguments.values[argument] = make_input(form, argument, arguments) if isinstance(form, str) else form
        place_all(arguments)
        yield arguments
        if "input_features" not in arguments.values and "input_values" not in arguments.values:
            return
