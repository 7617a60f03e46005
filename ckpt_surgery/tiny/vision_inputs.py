"""Inputs of images, videos and points: patches, grids, prompts, boxes; one function for each form.

Each changes the arguments of a forward in place, as those in `family_inputs` do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ckpt_surgery.tiny.arguments import ForwardArguments

_CODE = 8
"""The pixels on each side that one code of FLAVA's codebook stands for."""


def single_patches(arguments: ForwardArguments) -> None:
    """Flat patches reshaped into small images, shape (patches, channels, patch, patch)."""
    patch = int(arguments.find("patch_size", default=8, part="vision"))
    for name in ("pixel_values", next(iter(arguments.parameters))):
        flat = arguments.values.get(name)
        if isinstance(flat, torch.Tensor) and flat.ndim == 2 and flat.is_floating_point():
            arguments.values[name] = flat.reshape(len(flat), arguments.channels(), -1, patch, patch)[:, :, 0]


def row_of_patches(arguments: ForwardArguments) -> None:
    """The small images of `single_patches`, all in one row."""
    single_patches(arguments)
    arguments.values["pixel_values"] = arguments.values["pixel_values"].unsqueeze(0)


def padded_patches(arguments: ForwardArguments) -> None:
    """Flat patches with one row per image."""
    flat = arguments.values["pixel_values"]
    arguments.values["pixel_values"] = flat.reshape(arguments.batch, -1, flat.shape[-1])


def strip_of_patches(arguments: ForwardArguments) -> None:
    """The patches of all images side by side in one strip, with the grid of each image."""
    patch, side = int(arguments.find("patch_size", default=8, part="vision")), 4
    count = arguments.batch * side * side
    arguments.values["pixel_values"] = arguments.floats((1, arguments.channels(), patch, count * patch))
    arguments.values["target_sizes"] = torch.tensor([[side, side]] * arguments.batch)


def pooled_patches(arguments: ForwardArguments) -> None:
    """Flat patches by crop, and for each image token the four patches that it pools."""
    patch, batch = int(arguments.find("patch_size", default=8, part="vision")), arguments.batch
    side = arguments.image()[0] // patch
    even = side // 2 * 2
    places = torch.arange(batch * side * side).reshape(batch, side, side)[:, :even, :even]
    pooling = places.reshape(batch, side // 2, 2, side // 2, 2).transpose(2, 3).reshape(-1, 4)
    if "pixel_values" in arguments.values:
        patches = arguments.floats((batch, side * side, arguments.channels() * patch * patch))
        arguments.values["pixel_values"] = patches
    if "image_token_pooling" in arguments.names:
        arguments.values["image_token_pooling"] = pooling
        arguments.values["image_grids"] = torch.tensor([[side // 2, side // 2, 0, 0]] * batch)
        arguments.values["image_num_crops"] = torch.ones(batch, dtype=torch.long)
    if "pooled_patches_idx" in arguments.names:
        width = int(arguments.config.hidden_size) * len(arguments.config.vision_feature_layer)
        arguments.values["image_features"] = arguments.floats((batch, side * side, width))
        arguments.values["pooled_patches_idx"] = pooling


def masked_tiles(arguments: ForwardArguments) -> None:
    """One tile per image, and a mask of the tiles."""
    if "pixel_attention_mask" in arguments.names:
        arguments.values["pixel_values"] = arguments.values["pixel_values"].unsqueeze(1)
        arguments.values["pixel_attention_mask"] = torch.ones((arguments.batch, 1), dtype=torch.bool)


def image_pairs(arguments: ForwardArguments) -> None:
    """Two images per sample, whose points are matched."""
    height, width = arguments.image()
    arguments.values["pixel_values"] = arguments.floats((arguments.batch, 2, arguments.channels(), height, width))


def single_tiles(arguments: ForwardArguments) -> None:
    """One tile per image."""
    if "pixel_values" in arguments.values:
        arguments.values["pixel_values"] = arguments.values["pixel_values"].unsqueeze(1)


def clips(arguments: ForwardArguments) -> None:
    """A clip for a single text: the model's column embeddings have no place for more."""
    for name in ("input_ids", "attention_mask"):
        arguments.values[name] = arguments.values[name][:1]
    shape = (1, int(arguments.find("num_frames", default=4)), arguments.channels(), *arguments.image())
    arguments.values["pixel_values"] = arguments.floats(shape)


def frames_alone(arguments: ForwardArguments) -> None:
    """Frames of clips, one by one."""
    arguments.values["pixel_values"] = arguments.values["pixel_values"].flatten(0, 1)


def scaled_image(arguments: ForwardArguments) -> None:
    """An image so large that its smallest scaled copy still fills a patch."""
    size = round(int(arguments.config.patch_size) / min(arguments.config.scaled_images_ratios))
    arguments.values["pixel_values"] = arguments.floats((arguments.batch, arguments.channels(), size, size))


def long_line(arguments: ForwardArguments) -> None:
    """A line of text: an image much wider than high."""
    if "pixel_values" in arguments.names:
        arguments.values["pixel_values"] = arguments.floats((arguments.batch, arguments.channels(), 96, 160))


def line_features(arguments: ForwardArguments) -> None:
    """Features of a line of text, one row high, with as many channels as the first convolution takes."""
    arguments.values["hidden_states"] = arguments.floats((arguments.batch, _first_channels(arguments), 1, 8))


def image_states(arguments: ForwardArguments) -> None:
    """An image under the name of hidden states."""
    shape = (arguments.batch, _first_channels(arguments), *arguments.image())
    arguments.values["hidden_states"] = arguments.floats(shape)


def _first_channels(arguments: ForwardArguments) -> int:
    """The channels that the first convolution of the model takes."""
    convolutions = (m for m in arguments.model.modules() if isinstance(m, torch.nn.Conv2d))
    return next(convolutions).in_channels


def image_prompt(arguments: ForwardArguments) -> None:
    """A second image with its mask, which says what to segment, and the mask of the first."""
    height, width = arguments.image()  # of both images, one above the other
    for name in ("pixel_values", "prompt_pixel_values", "prompt_masks", "labels"):
        arguments.values[name] = arguments.floats((arguments.batch, arguments.channels(), height // 2, width))


def masked_pairs(arguments: ForwardArguments) -> None:
    """Masked patches and tokens of matching images and texts, with the pixels that a codebook turns into targets."""
    ids, patch = arguments.values["input_ids"], int(arguments.find("patch_size", default=8, part="image"))
    height, width = (_CODE * (side // patch) for side in arguments.image())
    codes = (arguments.batch, arguments.channels(), height, width)
    arguments.values |= {
        "codebook_pixel_values": arguments.floats(codes).sigmoid(),
        "bool_masked_pos": arguments.alternate_patches(),
        "input_ids_masked": arguments.tokens(ids.shape),
        "mlm_labels": ids.clone(),
        "itm_labels": torch.ones(arguments.batch, dtype=torch.long),
    }


def named_classes(arguments: ForwardArguments) -> None:
    """Two class names per image, and a text that names the task."""
    for name, count in (("classes", 2 * arguments.batch), ("tasks", arguments.batch)):
        arguments.values[f"{name}_input_ids"] = arguments.tokens((count, 6))
        arguments.values[f"{name}_attention_mask"] = torch.ones((count, 6), dtype=torch.long)
    arguments.values["classes_structure"] = torch.full((arguments.batch,), 2)


def detected_boxes(arguments: ForwardArguments) -> None:
    """Four boxes per image, with their classes and the mask of those that count."""
    corner = arguments.integers((arguments.batch, 4, 2), 8)
    arguments.values["boxes"] = torch.cat([corner, corner + 4], dim=-1)
    arguments.values["labels"] = arguments.integers((arguments.batch, 4), 4)
    arguments.values["mask"] = torch.ones((arguments.batch, 4), dtype=torch.bool)


def text_alone(arguments: ForwardArguments) -> None:
    """Text only: the image turns into discrete tokens, which carry no gradient."""
    for name in ("pixel_values", "image_grid_thw"):
        arguments.values.pop(name, None)


VISION_INPUTS: dict[str, Callable[[ForwardArguments], None]] = {
    "FlavaForPreTraining": masked_pairs,
    "Florence2VisionBackbone": image_states,
    "GlmImageForConditionalGeneration": text_alone,
    "GlmImageModel": text_alone,
    "PPDocLayoutV2ReadingOrder": detected_boxes,
    "PPOCRV5MobileDetModel": image_states,
    "PPOCRV5MobileRecEncoderWithSVTR": line_features,
    "PPOCRV5ServerRecEncoderWithSVTR": line_features,
    "PPOCRV6SmallRecEncoderWithSVTR": line_features,
    "SLANeXtBackbone": image_states,
    "SLANetBackbone": image_states,
    "ViltForImagesAndTextClassification": image_pairs,
    "XCLIPVisionModel": frames_alone,
    "colqwen2": padded_patches,
    "depth_pro": scaled_image,
    "efficientloftr": image_pairs,
    "granite_docling": masked_tiles,
    "lightglue": image_pairs,
    "minicpm_ocr_vision": strip_of_patches,
    "minicpmv4_7_vision": strip_of_patches,
    "molmo2": pooled_patches,
    "molmo2_adapter": pooled_patches,
    "molmo2_vision": pooled_patches,
    "omdet-turbo": named_classes,
    "paddleocr_vl_vision": row_of_patches,
    "perception_lm": single_tiles,
    "pp_ocrv5_mobile_rec": long_line,
    "seggpt": image_prompt,
    "superglue": image_pairs,
    "tvp": clips,
}
"""The change to the inputs by class or model type."""
