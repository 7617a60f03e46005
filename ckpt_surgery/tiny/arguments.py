"""Collect the arguments of one forward while they are made, and read their sizes from the configuration."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from ckpt_surgery.tiny.configs import all_configs, text_config

_PLACES = 84
"""The places that a detector sees in an image of 64 by 64 pixels: cells of 8, 16 and 32 pixels (64 + 16 + 4)."""
_PART_ARGUMENTS = {
    "vision_config": ("pixel_values", "image_position_ids"),
    "audio_config": ("input_features",),
    "is_encoder_decoder": ("decoder_input_ids",),
}
"""The arguments that only a part of a model reads, by the field of the configuration for that part."""


class ForwardArguments:
    """The arguments so far (`values`, by parameter name) and their model, with its `main_input`.

    `names` are the parameters of the model's forward, without those for parts that its configuration leaves out.
    `batch` and `length` are the requested sizes. Random tensors come from a generator of their own.
    """

    def __init__(self, model: Any, batch: int, length: int, seed: int) -> None:
        self.model, self.config = model, model.config
        self.main_input = str(getattr(model, "main_input_name", "input_ids"))
        self.batch, self.length = batch, length
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self.parameters = inspect.signature(model.forward).parameters
        absent = [names for part, names in _PART_ARGUMENTS.items() if getattr(self.config, part, ...) in (None, False)]
        self.names = self.parameters.keys() - set(chain(*absent))
        self.values: dict[str, Any] = {}
        self.configs = list(all_configs(model.config))

    def integers(self, shape: Sequence[int], high: int) -> Tensor:
        """Draw integers from 0 to `high` - 1, int64, on the CPU."""
        return torch.randint(0, max(high, 1), tuple(shape), generator=self.generator)

    def floats(self, shape: Sequence[int]) -> Tensor:
        """Draw samples of a normal distribution in the model's dtype, on the CPU."""
        return torch.randn(tuple(shape), generator=self.generator).to(self.dtype)

    def tokens(self, shape: Sequence[int]) -> Tensor:
        """Draw token ids of the vocabulary, special tokens only if there are no others."""
        special: list[Any] = []
        for name, value in chain.from_iterable(vars(config).items() for config in self.configs):
            if name.endswith(("token_id", "token_index", "token_ids")):
                special += value if isinstance(value, (list, tuple)) else [value]
        plain = [i for i in range(self.vocabulary()) if i not in special] or [0]
        return torch.tensor(plain)[self.integers(shape, len(plain))]

    def boxes(self, shape: Sequence[int]) -> Tensor:
        """Draw boxes by two of their corners, int64, on the CPU."""
        corner = self.integers((*shape, 2), 8)
        return torch.cat([corner, corner + 4], dim=-1)

    def find(self, *names: str, default: Any = None, part: str = "") -> Any:
        """Return the first of `names` that a configuration sets; those with `part` in their class names come first."""
        ordered = sorted(self.configs, key=lambda c: part not in type(c).__name__.lower()) if part else self.configs
        for config in ordered:
            for name in names:
                value = getattr(config, name, None)
                if value is not None:
                    return value
        return default

    def vocabulary(self) -> int:
        """Return the number of token ids of the text part."""
        size = getattr(text_config(self.config), "vocab_size", None)
        if isinstance(size, int) and size > 0:
            return size
        return int(self.find("vocab_size", "src_vocab_size", default=32))

    def classes(self) -> int:
        """Return the number of labels of a classification head."""
        return int(getattr(self.config, "num_labels", None) or 2)

    def image(self) -> tuple[int, int]:
        """Return height and width of an image in pixels."""
        names = ("image_size", "img_size", "resolution", "input_size", "max_img_size")
        size = self.find(*names, part="vision")
        if size is None:  # a detector must see at least one place per query
            queries = self.find("num_queries", default=0)
            size = 64 if not isinstance(queries, int) or queries <= _PLACES else 640
        if isinstance(size, dict):
            size = (size["height"], size["width"])
        height, width = (size[0], size[-1]) if isinstance(size, (list, tuple)) else (size, size)
        return int(height), int(width)

    def channels(self) -> int:
        """Return the channels of an image."""
        value = self.find("num_channels", "in_channels", "in_chans", default=3, part="vision")
        return value if isinstance(value, int) else 3

    def mels(self) -> int:
        """Return the width of one frame of audio features."""
        names = (
            "num_chroma",
            "num_mel_bins",
            "feature_size",
            "n_mels",
            "input_feat_size",
            "feature_projection_input_dim",
            "input_dim",
        )
        return int(self.find(*names, default=80, part="audio"))

    def horizon(self) -> int:
        """Return the number of time steps to predict."""
        return int(self.find("prediction_length", default=4))

    def requires(self, name: str) -> bool:
        """Tell whether the forward has this argument and needs it: as its main input, or without a default."""
        parameter = self.parameters.get(name)
        return parameter is not None and (name == self.main_input or parameter.default is parameter.empty)

    def flat_patches(self) -> tuple[Tensor, Tensor]:
        """Draw the patches of all images in one sequence, and return them with the grid of each image."""
        patch = self.find("patch_size", default=8, part="vision")
        frames = self.find("temporal_patch_size", "patch_temporal", default=1, part="vision")
        side = 2 * int(self.find("spatial_merge_size", "merge_size", default=2, part="vision"))
        grid = torch.tensor([[1, side, side]] * self.batch)
        return self.floats((self.batch * side * side, self.channels() * frames * patch * patch)), grid

    def alternate_patches(self) -> Tensor:
        """Mask every other patch of an image or clip; the result is bool of shape (batch, patches)."""
        patch, tube = self.find("patch_size", default=16, part="vision"), self.find("tubelet_size", default=1)
        patch = patch[0] if isinstance(patch, (list, tuple)) else patch
        height, width = self.image()
        frames = max(1, int(self.find("num_frames", default=1)) // int(tube)) if isinstance(tube, int) else 1
        count = (height // patch) * (width // patch) * frames
        return (torch.arange(count) % 2 == 0).expand(self.batch, count).clone()

    def frames(self) -> int:
        """Count the time steps that the model extracts from the waveform in `values`; 0 if the model does not say."""
        count = getattr(self.model, "_get_feat_extract_output_lengths", None)
        wave = self.values.get("input_values")
        return int(count(torch.tensor(wave.shape[-1]))) if count and isinstance(wave, Tensor) else 0


def on_device(value: Any, device: torch.device) -> Any:
    """Move a value and the tensors in its dictionaries and lists to `device`."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: on_device(item, device) for name, item in value.items()}
    return [on_device(item, device) for item in value] if isinstance(value, list) else value
