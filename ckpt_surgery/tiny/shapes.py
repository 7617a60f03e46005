"""Inputs that no name in a signature gives away: one small function per form, for the table in `families`.

Each changes the draft of a model's arguments in place; names are those of the forward's parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ckpt_surgery.tiny.draft import Draft


def tiled_images(draft: Draft) -> None:
    """Two crops per image, and the sizes of the images that they come from."""
    height, width = draft.image()
    if "pixel_values" in draft.values:
        draft.values["pixel_values"] = draft.floats((draft.batch, 2, draft.channels(), height, width))
        draft.values["image_sizes"] = torch.tensor([[height, width]] * draft.batch)


def sized_images(draft: Draft) -> None:
    """The sizes of the images, where the model crops by them."""
    if "image_sizes" in draft.names:
        draft.values["image_sizes"] = torch.tensor([list(draft.image())] * draft.batch)


def single_patches(draft: Draft) -> None:
    """The flat patches as small images, one behind the other."""
    patch = int(draft.find("patch_size", default=8, part="vision"))
    for name in ("pixel_values", next(iter(draft.parameters))):
        flat = draft.values.get(name)
        if isinstance(flat, torch.Tensor) and flat.ndim == 2 and flat.is_floating_point():
            draft.values[name] = flat.reshape(len(flat), draft.channels(), -1, patch, patch)[:, :, 0]


def without_pixels(draft: Draft) -> None:
    """Text alone."""
    draft.values.pop("pixel_values", None)


def tiles(draft: Draft) -> None:
    """Images in tiles, with the ids and masks of their aspect ratios."""
    height, width = draft.image()
    if "pixel_values" not in draft.names:
        return
    tiles = int(draft.find("max_num_tiles", default=4))
    draft.values["pixel_values"] = draft.floats((draft.batch, 1, tiles, draft.channels(), height, width))
    draft.values["aspect_ratio_ids"] = torch.ones((draft.batch, 1), dtype=torch.long)
    draft.values["aspect_ratio_mask"] = torch.ones((draft.batch, 1, tiles), dtype=torch.long)
    if "cross_attention_mask" in draft.names:
        draft.values["cross_attention_mask"] = torch.ones((draft.batch, draft.length, 1, tiles), dtype=torch.long)


def image_per_text(draft: Draft) -> None:
    """One image in a list of its own per text, and which tokens see it."""
    pixels = draft.values.get("pixel_values")
    if isinstance(pixels, torch.Tensor) and pixels.ndim == 4:
        draft.values["pixel_values"] = pixels.unsqueeze(1)
        draft.values["image_attention_mask"] = torch.ones((draft.batch, draft.length, 1), dtype=torch.long)


def image_places(draft: Draft) -> None:
    """The tokens that the image takes the place of."""
    places = torch.zeros((draft.batch, draft.length), dtype=torch.long)
    places[:, 1 : 1 + int(draft.find("latent_query_num", default=4))] = 1
    if "image_embeds_position_mask" in draft.names:
        draft.values["image_embeds_position_mask"] = places


def codebooks(draft: Draft) -> None:
    """One row of tokens per sample and codebook."""
    books = int(draft.find("num_codebooks", default=4))
    for name in ("input_ids", "decoder_input_ids"):
        if name in draft.values and not (name == "input_ids" and draft.config.is_encoder_decoder):
            draft.values[name] = draft.tokens((draft.batch * books, draft.length))


def channels_of_codes(draft: Draft) -> None:
    """Decoder tokens with one column per channel of codes."""
    channels = int(draft.find("num_channels", default=9, part="decoder"))
    draft.values["decoder_input_ids"] = draft.tokens((draft.batch, draft.length, channels))


def objects(draft: Draft) -> None:
    """Features and places of four objects per image."""
    draft.values["visual_feats"] = draft.floats((draft.batch, 4, int(draft.find("visual_feat_dim"))))
    draft.values["visual_pos"] = draft.floats((draft.batch, 4, int(draft.find("visual_pos_dim")))).sigmoid()


def separators(draft: Draft) -> None:
    """Three separators, as question answering wants them."""
    draft.values["input_ids"][..., [4, 8, -1]] = int(draft.find("sep_token_id", default=2))


def query_text(draft: Draft) -> None:
    """A text for the query part too, and two frames where there is a video."""
    if "qformer_input_ids" in draft.names:
        draft.values["qformer_input_ids"] = draft.tokens((draft.batch, 6))
    if "video" in draft.config.model_type and "pixel_values" in draft.values:
        height, width = draft.image()
        draft.values["pixel_values"] = draft.floats((draft.batch, 2, draft.channels(), height, width))


def decisions(draft: Draft) -> None:
    """Six steps of states, actions and rewards."""
    shape = (draft.batch, 6)
    draft.values |= {
        "states": draft.floats((*shape, int(draft.find("state_dim")))),
        "actions": draft.floats((*shape, int(draft.find("act_dim")))),
        "rewards": draft.floats((*shape, 1)),
        "returns_to_go": draft.floats((*shape, 1)),
        "timesteps": torch.arange(6).expand(shape).clone(),
        "attention_mask": torch.ones(shape, dtype=torch.long),
    }


def flattened(draft: Draft) -> None:
    """Patches in a row, each behind its row and column."""
    patch = int(draft.find("patch_size", default=8, part="vision"))
    size = 2 + draft.channels() * patch * patch
    places = torch.stack(torch.meshgrid(torch.arange(1, 5), torch.arange(1, 5), indexing="ij"), -1).reshape(1, 16, 2)
    patches = torch.cat(
        [places.expand(draft.batch, 16, 2).to(draft.dtype), draft.floats((draft.batch, 16, size - 2))], -1
    )
    if "flattened_patches" in draft.names:
        draft.values["flattened_patches"] = patches
        draft.values["attention_mask"] = torch.ones((draft.batch, 16), dtype=torch.long)


def two_resolutions(draft: Draft) -> None:
    """The same image in the size of the second vision part."""
    if "high_res_pixel_values" in draft.names:
        size = int(draft.config.high_res_vision_config.image_size)
        draft.values["high_res_pixel_values"] = draft.floats((draft.batch, draft.channels(), size, size))


def without_sound(draft: Draft) -> None:
    """Text alone, for a model whose sound needs cut-off points."""
    draft.values.pop("input_values", None)


def phrases(draft: Draft) -> None:
    """Two phrases with the separators of BERT's vocabulary, whose ids the models know by heart."""
    row = [101, 5, 6, 1012, 7, 8, 1012, 102]
    draft.values["input_ids"] = torch.tensor([row] * draft.batch)
    draft.values["attention_mask"] = torch.ones((draft.batch, len(row)), dtype=torch.long)


def embedded(draft: Draft) -> None:
    """Hidden states in the place of a waveform, for a model without its prenets."""
    if "decoder_input_values" in draft.names and "labels" not in draft.names:
        width = int(draft.config.hidden_size)
        draft.values["input_values"] = draft.floats((draft.batch, draft.length, width))
        draft.values["decoder_input_values"] = draft.floats((draft.batch, draft.length, width))


def unmasked(draft: Draft) -> None:
    """Sound without a mask: every feature counts."""
    draft.values.pop("input_features_mask", None)


def books(draft: Draft) -> None:
    """Tokens with one column per codebook and one for text."""
    books = int(draft.find("num_codebooks", default=32)) + 1
    draft.values["input_ids"] = draft.tokens((draft.batch, draft.length, books)) % 16


def merged(draft: Draft) -> None:
    """By how much each image's patches are merged."""
    for name in ("merge_sizes", "image_merge_sizes"):
        if name in draft.names:
            draft.values[name] = torch.tensor([2] * draft.batch)


def positioned_patches(draft: Draft) -> None:
    """Patches in a row with their places, for the vision parts of Gemma 4."""
    if "pixel_values" not in draft.values:
        return
    patch, side = int(draft.find("patch_size", default=8, part="vision")), 6
    places = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"), -1)
    draft.values["pixel_values"] = draft.floats((draft.batch, side * side, draft.channels() * patch * patch)).sigmoid()
    for name in ("pixel_position_ids", "image_position_ids"):
        if name in draft.names:
            draft.values[name] = places.reshape(1, -1, 2).repeat(draft.batch, 1, 1)


def task(draft: Draft) -> None:
    """A text that names the task."""
    draft.values["task_inputs"] = draft.tokens((draft.batch, int(draft.find("task_seq_len", default=77))))


def forecast(draft: Draft) -> None:
    """A context, where nothing is padded, of the highest frequency."""
    shape = (draft.batch, int(draft.find("context_length", default=64)))
    draft.values["past_values"] = draft.floats(shape)
    if "past_values_padding" in draft.names:
        draft.values["past_values_padding"] = torch.zeros(shape, dtype=torch.long)
        draft.values["freq"] = torch.zeros((draft.batch, 1), dtype=torch.long)


def queries(draft: Draft) -> None:
    """Learned queries, and the image that they look at."""
    for name, count in (("query_embeds", 4), ("encoder_hidden_states", 5)):
        width = draft.config.hidden_size if name == "query_embeds" else draft.config.encoder_hidden_size
        draft.values[name] = draft.floats((draft.batch, count, int(width)))


def no_cache(draft: Draft) -> None:
    """No cache, which the configuration has no layer count for."""
    draft.values["use_cache"] = False
