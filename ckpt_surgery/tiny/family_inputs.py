"""Inputs that no parameter name implies: one function for each form, and a table that says which family needs which.

Each changes the arguments of a forward in place.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ckpt_surgery.model_patches.release_names import CACHE_SWITCH
from ckpt_surgery.tiny.arguments import ForwardArguments
from ckpt_surgery.tiny.audio_inputs import AUDIO_INPUTS
from ckpt_surgery.tiny.text_inputs import TEXT_INPUTS
from ckpt_surgery.tiny.vision_inputs import VISION_INPUTS, single_patches


def tiled_images(arguments: ForwardArguments) -> None:
    """Crops of images of the first size that the model cuts, each image as a whole before them, and their sizes."""
    height, width = arguments.image()
    if "pixel_values" in arguments.values:
        size = list(arguments.find("image_grid_pinpoints", default=[[height, width]])[0])
        crops = 1 + -(-size[0] // height) * -(-size[1] // width)
        shape = (arguments.batch, crops, arguments.channels(), height, width)
        arguments.values["pixel_values"] = arguments.floats(shape)
        arguments.values["image_sizes"] = torch.tensor([size] * arguments.batch)


def sized_images(arguments: ForwardArguments) -> None:
    """The sizes of the images, for models that crop by them."""
    if "image_sizes" in arguments.names:
        arguments.values["image_sizes"] = torch.tensor([list(arguments.image())] * arguments.batch)


def without_pixels(arguments: ForwardArguments) -> None:
    """Text only, for models that cut images and sounds into tokens without gradient, or take no more."""
    for name in ("pixel_values", "image_sizes", "input_values", "padding_mask"):
        arguments.values.pop(name, None)


def tiles(arguments: ForwardArguments) -> None:
    """Tiled images with the ids and masks of their aspect ratios."""
    height, width = arguments.image()
    if "pixel_values" not in arguments.names:
        return
    tiles = int(arguments.find("max_num_tiles", default=4))
    arguments.values["pixel_values"] = arguments.floats(
        (arguments.batch, 1, tiles, arguments.channels(), height, width)
    )
    arguments.values["aspect_ratio_ids"] = torch.ones((arguments.batch, 1), dtype=torch.long)
    arguments.values["aspect_ratio_mask"] = torch.ones((arguments.batch, 1, tiles), dtype=torch.long)
    if "cross_attention_mask" in arguments.names:
        arguments.values["cross_attention_mask"] = torch.ones(
            (arguments.batch, arguments.length, 1, tiles), dtype=torch.long
        )


def image_per_text(arguments: ForwardArguments) -> None:
    """One image per text in a list of its own, and the mask of the tokens that attend to it."""
    pixels = arguments.values.get("pixel_values")
    if isinstance(pixels, torch.Tensor) and pixels.ndim == 4:
        arguments.values["pixel_values"] = pixels.unsqueeze(1)
        arguments.values["image_attention_mask"] = torch.ones((arguments.batch, arguments.length, 1), dtype=torch.long)


def image_positions(arguments: ForwardArguments) -> None:
    """The positions that the image embeddings replace."""
    places = torch.zeros((arguments.batch, arguments.length), dtype=torch.long)
    places[:, 1 : 1 + int(arguments.find("latent_query_num", default=4))] = 1
    if "image_embeds_position_mask" in arguments.names:
        arguments.values["image_embeds_position_mask"] = places


def codebooks(arguments: ForwardArguments) -> None:
    """One row of tokens per sample and codebook."""
    books = int(arguments.find("num_codebooks", default=4))
    for name in ("input_ids", "decoder_input_ids"):
        if name in arguments.values and not (name == "input_ids" and arguments.config.is_encoder_decoder):
            arguments.values[name] = arguments.tokens((arguments.batch * books, arguments.length))


def channels_of_codes(arguments: ForwardArguments) -> None:
    """Decoder tokens with one column per channel of codes."""
    channels = int(arguments.find("num_channels", default=9, part="decoder"))
    arguments.values["decoder_input_ids"] = arguments.tokens((arguments.batch, arguments.length, channels))


def detected_objects(arguments: ForwardArguments) -> None:
    """Features and positions of four objects per image."""
    arguments.values["visual_feats"] = arguments.floats((arguments.batch, 4, int(arguments.find("visual_feat_dim"))))
    arguments.values["visual_pos"] = arguments.floats(
        (arguments.batch, 4, int(arguments.find("visual_pos_dim")))
    ).sigmoid()


def separators(arguments: ForwardArguments) -> None:
    """Three separator tokens, as question answering requires."""
    arguments.values["input_ids"][..., [4, 8, -1]] = int(arguments.find("sep_token_id", default=2))


def query_text(arguments: ForwardArguments) -> None:
    """A text for the Q-Former as well, and two frames per video."""
    if "qformer_input_ids" in arguments.names:
        arguments.values["qformer_input_ids"] = arguments.tokens((arguments.batch, 6))
    if "video" in arguments.config.model_type and "pixel_values" in arguments.values:
        height, width = arguments.image()
        arguments.values["pixel_values"] = arguments.floats((arguments.batch, 2, arguments.channels(), height, width))


def trajectories(arguments: ForwardArguments) -> None:
    """Six steps of states, actions and rewards."""
    shape = (arguments.batch, 6)
    arguments.values |= {
        "states": arguments.floats((*shape, int(arguments.find("state_dim")))),
        "actions": arguments.floats((*shape, int(arguments.find("act_dim")))),
        "rewards": arguments.floats((*shape, 1)),
        "returns_to_go": arguments.floats((*shape, 1)),
        "timesteps": torch.arange(6).expand(shape).clone(),
        "attention_mask": torch.ones(shape, dtype=torch.long),
    }


def query_and_document(arguments: ForwardArguments) -> None:
    """A query and a document in place of one text."""
    for part in ("query", "doc"):
        ids = arguments.tokens((arguments.batch, arguments.length))
        arguments.values |= {f"input_ids_{part}": ids, f"attention_mask_{part}": torch.ones_like(ids)}


def flattened(arguments: ForwardArguments) -> None:
    """One row of patches per image, each preceded by its row and column."""
    patch = int(arguments.find("patch_size", default=8, part="vision"))
    size = 2 + int(arguments.find("patch_embed_hidden_size", default=arguments.channels() * patch * patch))
    places = torch.stack(torch.meshgrid(torch.arange(1, 5), torch.arange(1, 5), indexing="ij"), -1).reshape(1, 16, 2)
    patches = torch.cat(
        [places.expand(arguments.batch, 16, 2).to(arguments.dtype), arguments.floats((arguments.batch, 16, size - 2))],
        -1,
    )
    if "flattened_patches" in arguments.names:
        arguments.values["flattened_patches"] = patches
        arguments.values["attention_mask"] = torch.ones((arguments.batch, 16), dtype=torch.long)


def two_resolutions(arguments: ForwardArguments) -> None:
    """The image once more at the resolution of the second vision part."""
    if "high_res_pixel_values" in arguments.names:
        size = int(arguments.config.high_res_vision_config.image_size)
        arguments.values["high_res_pixel_values"] = arguments.floats(
            (arguments.batch, arguments.channels(), size, size)
        )


def without_audio(arguments: ForwardArguments) -> None:
    """Text only: the audio of these models needs cutoff points."""
    arguments.values.pop("input_values", None)


def phrases(arguments: ForwardArguments) -> None:
    """Two phrases with the separator ids of BERT's vocabulary, which these models hard-code."""
    row = [101, 5, 6, 1012, 7, 8, 1012, 102]
    arguments.values["input_ids"] = torch.tensor([row] * arguments.batch)
    arguments.values["attention_mask"] = torch.ones((arguments.batch, len(row)), dtype=torch.long)


def hidden_states(arguments: ForwardArguments) -> None:
    """Hidden states instead of a waveform, for a model without prenets."""
    if "decoder_input_values" in arguments.names and "labels" not in arguments.names:
        width = int(arguments.config.hidden_size)
        arguments.values["input_values"] = arguments.floats((arguments.batch, arguments.length, width))
        arguments.values["decoder_input_values"] = arguments.floats((arguments.batch, arguments.length, width))


def unmasked(arguments: ForwardArguments) -> None:
    """Audio features without a mask."""
    arguments.values.pop("input_features_mask", None)


def codebook_columns(arguments: ForwardArguments) -> None:
    """Tokens with a column for each codebook and one for text."""
    books = int(arguments.find("num_codebooks", default=32)) + 1
    arguments.values["input_ids"] = arguments.tokens((arguments.batch, arguments.length, books)) % 16


def merge_sizes(arguments: ForwardArguments) -> None:
    """The merge factor of each image."""
    for name in ("merge_sizes", "image_merge_sizes"):
        if name in arguments.names:
            arguments.values[name] = torch.tensor([2] * arguments.batch)


def positioned_patches(arguments: ForwardArguments) -> None:
    """One row of patches per image with their positions, for the vision parts of Gemma 4."""
    if "pixel_values" not in arguments.values:
        return
    patch, side = int(arguments.find("patch_size", default=8, part="vision")), 6
    places = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"), -1)
    arguments.values["pixel_values"] = arguments.floats(
        (arguments.batch, side * side, arguments.channels() * patch * patch)
    ).sigmoid()
    for name in ("pixel_position_ids", "image_position_ids"):
        if name in arguments.names:
            arguments.values[name] = places.reshape(1, -1, 2).repeat(arguments.batch, 1, 1)


def task_text(arguments: ForwardArguments) -> None:
    """A text that names the task."""
    arguments.values["task_inputs"] = arguments.tokens(
        (arguments.batch, int(arguments.find("task_seq_len", default=77)))
    )


def forecast(arguments: ForwardArguments) -> None:
    """A context without padding, of the highest frequency."""
    shape = (arguments.batch, int(arguments.find("context_length", default=64)))
    arguments.values["past_values"] = arguments.floats(shape)
    if "past_values_padding" in arguments.names:
        arguments.values["past_values_padding"] = torch.zeros(shape, dtype=torch.long)
        arguments.values["freq"] = torch.zeros((arguments.batch, 1), dtype=torch.long)


def queries(arguments: ForwardArguments) -> None:
    """Learned queries, and the image features they attend to."""
    for name, count in (("query_embeds", 4), ("encoder_hidden_states", 5)):
        width = arguments.config.hidden_size if name == "query_embeds" else arguments.config.encoder_hidden_size
        arguments.values[name] = arguments.floats((arguments.batch, count, int(width)))


def no_cache(arguments: ForwardArguments) -> None:
    """No cache: the configuration has no layer count to build one from."""
    arguments.values[CACHE_SWITCH] = False


FAMILY_INPUTS: dict[str, Callable[[ForwardArguments], None]] = {
    **AUDIO_INPUTS,
    **TEXT_INPUTS,
    **VISION_INPUTS,
    "apertus1p5": without_pixels,
    "blt": no_cache,
    "blip_2_qformer": queries,
    "csm": without_audio,
    "decision_transformer": trajectories,
    "deepseek_vl_hybrid": two_resolutions,
    "dia": channels_of_codes,
    "diffusion_gemma": positioned_patches,
    "emu3": sized_images,
    "fuyu": without_pixels,
    "gemma4": positioned_patches,
    "gemma4_vision": positioned_patches,
    "granite4_vision": tiled_images,
    "granite_speech": unmasked,
    "granite_speech_plus": unmasked,
    "grounding-dino": phrases,
    "idefics": image_per_text,
    "instructblip": query_text,
    "instructblipvideo": query_text,
    "kimi_k25": single_patches,
    "kimi_k25_vision": single_patches,
    "kosmos-2": image_positions,
    "kyutai_speech_to_text": codebook_columns,
    "lighton_ocr": sized_images,
    "llava_next": tiled_images,
    "llava_next_video": tiled_images,
    "llava_onevision": tiled_images,
    "longformer": separators,
    "lxmert": detected_objects,
    "mistral3": sized_images,
    "mistral_large4": sized_images,
    "mllama": tiles,
    "mllama_vision_model": tiles,
    "mm-grounding-dino": phrases,
    "musicgen": codebooks,
    "musicgen_decoder": codebooks,
    "musicgen_melody": codebooks,
    "musicgen_melody_decoder": codebooks,
    "oneformer": task_text,
    "paddleocr_vl": single_patches,
    "pix2struct": flattened,
    "pix2struct_vision_model": flattened,
    "retribert": query_and_document,
    "speecht5": hidden_states,
    "timesfm": forecast,
    "video_llama_3": merge_sizes,
    "video_llama_3_vision": merge_sizes,
}
"""The change to the inputs by class or, where a class has none of its own, by model type.

It is applied before placeholder tokens are put into the text.
"""
