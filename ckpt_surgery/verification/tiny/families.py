"""What single model families need and no general rule gives: tables, as data, and the small functions they name.

The general rules are in `rules` (configurations) and `inputs` (arguments of a forward).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from transformers import PretrainedConfig

if TYPE_CHECKING:
    from ckpt_surgery.verification.tiny.draft import Draft

_HYBRID = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_d_ssm": 128, "mamba_chunk_size": 16}
_EFFICIENT = {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280}
_SERIES = {"num_time_features": 1, "prediction_length": 4, "context_length": 8}
_PINPOINTS = {"image_grid_pinpoints": [[32, 32]]}
_IMAGE_TOKEN = {"image_token_id": 120, "image_token_index": 120}
_ONE_LANGUAGE = {"languages": ["en_XX"], "default_language": "en_XX"}
_CODES = {f"IMGIMG{chr(65 + i)}Z": 100 + i for i in range(8)}
_VISUAL_TOKENS = {f"<|visual token {i:06d}|>": 100 + i for i in range(8)}

_MAMBA2 = {"num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 16, "chunk_size": 16}
_MROPE = {"rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3]}}
_HALF_MROPE = {"rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 2]}}
_CORNERS = {"coordinate_size": 8, "shape_size": 16}
_PHRASES = {"text_config": {"vocab_size": 1100}, "max_text_len": 8}
_ZAMBA = {
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "num_hidden_layers": 5,
    "layers_block_type": ["mamba", "mamba", "hybrid", "mamba", "hybrid"],
}
_CODEC = {"num_filters": 4}

CONFIG: dict[str, dict[str, Any]] = {
    "align": {"projection_dim": 320},  # what the vision part's last stage gives
    "align_vision_model": _EFFICIENT,
    "aria": {"projector_patch_to_query_dict": {16: 4}, "max_value_projector_patch_to_query_dict": 4},
    "autoformer": _SERIES,
    "bamba": {**_HYBRID, "attn_layer_indices": [1], "num_hidden_layers": 2},
    "blip-2": _IMAGE_TOKEN,
    "chameleon": {"vocabulary_map": {"<image>": 120, **_CODES}},
    "chameleon_vqgan": {"num_embeddings": 8},
    "cvt": {"depth": (1, 2, 3)},  # the third stage reads its drop path at index 2
    "deepseek_v2": {"n_routed_experts": 4, "topk_method": "greedy"},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "dots3_note_text": {"num_key_value_heads": 4},
    "efficientnet": _EFFICIENT,
    "emu3": {"vocabulary_map": {"<image>": 120, "<|extra_200|>": 121, **_VISUAL_TOKENS}},
    "emu3_vqgan": {"codebook_size": 8},
    "falcon_h1": _HYBRID,
    "glm5_next_text": {"index_kpool": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "window_size": 8},
    "granite4_vision": _PINPOINTS,
    "granite_speech_encoder": {"context_size": 16, "max_pos_emb": 32},
    "granitemoehybrid": _HYBRID,
    "informer": _SERIES,
    "instructblip": _IMAGE_TOKEN,
    "instructblipvideo": {"video_token_id": 120, "video_token_index": 120},
    "led": {"attention_window": [8, 8], "max_encoder_position_embeddings": 128},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "llama4_vision_model": {"intermediate_size": 256, "vision_output_dim": 64},
    "llava_next": _PINPOINTS,
    "llava_next_video": _PINPOINTS,
    "llava_onevision": _PINPOINTS,
    "mllama_text_model": {
        "cross_attention_layers": [1],
        "num_hidden_layers": 2,
        "rope_scaling": {"rope_type": "default"},
    },
    "mllama_vision_model": {"intermediate_layers_indices": [0, 1], "vision_output_dim": 192},
    "reformer": {
        "axial_pos_shape": [4, 4],
        "axial_pos_embds_dim": [32, 32],
        "attn_layers": ["local", "lsh"],
        "local_attn_chunk_length": 4,
        "lsh_attn_chunk_length": 4,
        "num_buckets": 2,
    },
    "time_series_transformer": _SERIES,
    "xmod": _ONE_LANGUAGE,
    "mamba2": _MAMBA2,
    "glm4v_text": _MROPE,
    "glm4v_moe_text": _HALF_MROPE,
    "qwen3_vl_text": _MROPE,
    "qwen3_vl_moe_text": _MROPE,
    "qwen3_omni_moe_text": _MROPE,
    "qwen3_omni_moe_talker_text": _MROPE,
    "layoutlmv3": _CORNERS,
    "layoutlmv2": _CORNERS,
    "grounding-dino": _PHRASES,
    "mm-grounding-dino": _PHRASES,
    "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16, "chunk_size": 16},
    "zamba": _ZAMBA,
    "xlstm": {"hidden_size": 128, "embedding_dim": 128},  # the cache rounds its widths up to multiples of 64
    "lilt": {"hidden_size": 96, "intermediate_size": 96},  # six coordinates share the width
    "bit": {"num_groups": 4},
    "levit": {"image_size": 64, "patch_size": 16},
    "mobilevit": {"image_size": 64},
    "mobilevitv2": {"image_size": 64},
    "lw_detr_vit": {"num_windows": 4, "num_windows_side": 2, "image_size": 64, "pretrain_image_size": 64},
    "ernie4_5_vl_moe_text": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0, "mrope_section": [3, 3, 2]},
        "rope_scaling": {"rope_type": "default", "mrope_section": [3, 3, 2]},
    },
    "shieldgemma2": {"+yes_token_index": 10, "+no_token_index": 11},
    "clvp_decoder": {"num_attention_heads": 2},
    "clvp_encoder": {"num_attention_heads": 2},  # its rotary part has at least 32 channels
    "qwen2_5_vl_text": _MROPE,
    "qwen2_vl_text": _MROPE,
    "Glm4vMoe_text": _HALF_MROPE,
    "granite_speech_plus_encoder": {"context_size": 16, "max_pos_emb": 32},
    "molmo2_adapter": {"vision_feature_layer": [1, 0]},
    "perceiver": {"train_size": (16, 16), "num_latents": 8},
    "mimi": _CODEC,
    "encodec": _CODEC,
    "voxtral": {"audio_token_id": 120},
    "step3p7_text": {"sliding_window": 8},
    "step3p5": {"sliding_window": 8},
    "dac": {"encoder_hidden_size": 8, "decoder_hidden_size": 64, "hidden_size": 128},
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 64},
    "seggpt": {"num_hidden_layers": 5, "intermediate_hidden_state_indices": [1, 2, 3, 4], "merge_index": 0},
    "moonshine_streaming": {"+num_key_value_heads": 4},
    "qwen2_5_omni_thinker": {"+vision_start_token_id": 121, "+vision_end_token_id": 122},
    "qwen3_omni_moe_thinker": {"+vision_start_token_id": 121, "+vision_end_token_id": 122},
    "transfo-xl": {"cutoffs": [40, 80], "vocab_size": 128},
}
"""Changes by model type, on top of the general rules, as far as the configuration declares the attribute.

A name with a `+` is said in any case; a dictionary for a nested configuration changes what it names there.
"""

KEPT: dict[str, tuple[str, ...]] = {
    "align_vision_model": ("hidden_dim", "in_channels", "out_channels"),
    "autoformer": ("feature_size", "input_size"),
    "efficientnet": ("hidden_dim", "in_channels", "out_channels"),
    "hrm_text": ("num_hidden_layers",),
    "informer": ("feature_size", "input_size"),
    "time_series_transformer": ("feature_size", "input_size"),
}
"""Attributes that no rule may change, by model type: their value is tied to something that the code fixes."""

SHOWN: dict[str, dict[str, Any]] = {
    "gemma4_text": {"num_kv_shared_layers": 2},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 16},
}
"""Parts that a class switches off by default, on where nothing but the class was given: trainings use them."""

CLASS_OPTIONS: dict[str, dict[str, Any]] = {
    "ReformerModelWithLMHead": {"is_decoder": True},
    "T5GemmaEncoderModel": {"is_encoder_decoder": False},
}
"""Attributes that one class wants and the configuration's other classes do not."""


def config_changes(
    config: PretrainedConfig, changed: Mapping[str, Any], declared: Mapping[str, Any]
) -> dict[str, Any]:
    """The changes that the family of `config` needs, and those that rid it of timm."""
    own = CONFIG.get(config.model_type, {})
    new = {n.removeprefix("+"): v for n, v in own.items() if n in declared or n in changed or n.startswith("+")}
    for name, value in new.items():
        if isinstance(value, dict) and "model_type" in (changed.get(name) or {}):
            new[name] = {**changed[name], **value}
    if "use_mamba_kernels" in changed:
        new["use_mamba_kernels"] = False  # they are for CUDA only
    if "attn_config" in changed and "rope_theta" in changed:
        new["attn_config"] = {"rope_theta": changed["rope_theta"], **changed["attn_config"]}
    if changed.get("use_timm_backbone") or changed.get("backbone"):
        new |= {"use_timm_backbone": False, "backbone": None, "use_pretrained_backbone": False}
        new |= {"backbone_config": tiny_backbone().to_dict(), "backbone_kwargs": None}
    return new


def is_timm(config: PretrainedConfig) -> bool:
    """Whether this is the configuration of a backbone that timm provides."""
    return config.model_type in ("timm_backbone", "timm_wrapper")


def tiny_backbone() -> PretrainedConfig:
    """A ResNet of transformers in the place of a backbone of timm."""
    from transformers import ResNetConfig

    return ResNetConfig(
        embedding_size=64,
        hidden_sizes=[64, 64, 64, 64],
        depths=[2, 2, 2, 2],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )


# --- configurations whose class refuses its own defaults ----------------------------------------------------


def _text_pair(config_class: Any) -> PretrainedConfig:
    from transformers import BertConfig

    return config_class(
        encoder=BertConfig().to_dict(),
        decoder=BertConfig(is_decoder=True, add_cross_attention=True).to_dict(),
        decoder_start_token_id=1,
        pad_token_id=0,
    )


def _image_to_text(config_class: Any) -> PretrainedConfig:
    from transformers import BertConfig, ViTConfig

    return config_class(
        encoder=ViTConfig().to_dict(),
        decoder=BertConfig(is_decoder=True, add_cross_attention=True).to_dict(),
        decoder_start_token_id=1,
        pad_token_id=0,
    )


def _speech_to_text(config_class: Any) -> PretrainedConfig:
    from transformers import BertConfig, Wav2Vec2Config

    return config_class(
        encoder=Wav2Vec2Config().to_dict(),
        decoder=BertConfig(is_decoder=True, add_cross_attention=True).to_dict(),
        decoder_start_token_id=1,
        pad_token_id=0,
    )


def _music(config_class: Any) -> PretrainedConfig:
    from transformers import EncodecConfig, T5Config

    decoder = config_class.sub_configs["decoder"]
    return config_class(
        text_encoder=T5Config().to_dict(), audio_encoder=EncodecConfig().to_dict(), decoder=decoder().to_dict()
    )


def _vision_and_text(config_class: Any) -> PretrainedConfig:
    from transformers import BertConfig, ViTConfig

    return config_class(vision_config=ViTConfig().to_dict(), text_config=BertConfig().to_dict())


DEFAULTS: dict[str, Callable[[type], PretrainedConfig]] = {
    "encoder-decoder": _text_pair,
    "musicgen": _music,
    "musicgen_melody": _music,
    "speech-encoder-decoder": _speech_to_text,
    "vision-encoder-decoder": _image_to_text,
    "vision-text-dual-encoder": _vision_and_text,
}
"""How to make a configuration of nothing but its class, by model type."""


# --- inputs -------------------------------------------------------------------------------------------------


def _tiled_images(draft: Draft) -> None:
    """Two crops per image, and the sizes of the images that they come from."""
    height, width = draft.image()
    if "pixel_values" in draft.values:
        draft.values["pixel_values"] = draft.floats((draft.batch, 2, draft.channels(), height, width))
        draft.values["image_sizes"] = torch.tensor([[height, width]] * draft.batch)


def _sized_images(draft: Draft) -> None:
    if "image_sizes" in draft.names:
        draft.values["image_sizes"] = torch.tensor([list(draft.image())] * draft.batch)


def _single_patches(draft: Draft) -> None:
    """The flat patches as small images, one behind the other."""
    patch = int(draft.find("patch_size", default=8, part="vision"))
    for name in ("pixel_values", next(iter(draft.parameters))):
        flat = draft.values.get(name)
        if isinstance(flat, torch.Tensor) and flat.ndim == 2 and flat.is_floating_point():
            draft.values[name] = flat.reshape(len(flat), draft.channels(), -1, patch, patch)[:, :, 0]


def _without_pixels(draft: Draft) -> None:
    draft.values.pop("pixel_values", None)


def _tiles(draft: Draft) -> None:
    height, width = draft.image()
    if "pixel_values" not in draft.names:
        return
    tiles = int(draft.find("max_num_tiles", default=4))
    draft.values["pixel_values"] = draft.floats((draft.batch, 1, tiles, draft.channels(), height, width))
    draft.values["aspect_ratio_ids"] = torch.ones((draft.batch, 1), dtype=torch.long)
    draft.values["aspect_ratio_mask"] = torch.ones((draft.batch, 1, tiles), dtype=torch.long)
    if "cross_attention_mask" in draft.names:
        draft.values["cross_attention_mask"] = torch.ones((draft.batch, draft.length, 1, tiles), dtype=torch.long)


def _image_per_text(draft: Draft) -> None:
    pixels = draft.values.get("pixel_values")
    if isinstance(pixels, torch.Tensor) and pixels.ndim == 4:
        draft.values["pixel_values"] = pixels.unsqueeze(1)
        draft.values["image_attention_mask"] = torch.ones((draft.batch, draft.length, 1), dtype=torch.long)


def _image_places(draft: Draft) -> None:
    places = torch.zeros((draft.batch, draft.length), dtype=torch.long)
    places[:, 1 : 1 + int(draft.find("latent_query_num", default=4))] = 1
    if "image_embeds_position_mask" in draft.names:
        draft.values["image_embeds_position_mask"] = places


def _codebooks(draft: Draft) -> None:
    books = int(draft.find("num_codebooks", default=4))
    for name in ("input_ids", "decoder_input_ids"):
        if name in draft.values and not (name == "input_ids" and draft.config.is_encoder_decoder):
            draft.values[name] = draft.tokens((draft.batch * books, draft.length))


def _channels_of_codes(draft: Draft) -> None:
    channels = int(draft.find("num_channels", default=9, part="decoder"))
    draft.values["decoder_input_ids"] = draft.tokens((draft.batch, draft.length, channels))


def _objects(draft: Draft) -> None:
    draft.values["visual_feats"] = draft.floats((draft.batch, 4, int(draft.find("visual_feat_dim"))))
    draft.values["visual_pos"] = draft.floats((draft.batch, 4, int(draft.find("visual_pos_dim")))).sigmoid()


def _separators(draft: Draft) -> None:
    draft.values["input_ids"][..., [4, 8, -1]] = int(draft.find("sep_token_id", default=2))


def _query_text(draft: Draft) -> None:
    if "qformer_input_ids" in draft.names:
        draft.values["qformer_input_ids"] = draft.tokens((draft.batch, 6))
    if "video" in draft.config.model_type and "pixel_values" in draft.values:
        height, width = draft.image()
        draft.values["pixel_values"] = draft.floats((draft.batch, 2, draft.channels(), height, width))


def _decisions(draft: Draft) -> None:
    shape = (draft.batch, 6)
    draft.values |= {
        "states": draft.floats((*shape, int(draft.find("state_dim")))),
        "actions": draft.floats((*shape, int(draft.find("act_dim")))),
        "rewards": draft.floats((*shape, 1)),
        "returns_to_go": draft.floats((*shape, 1)),
        "timesteps": torch.arange(6).expand(shape).clone(),
        "attention_mask": torch.ones(shape, dtype=torch.long),
    }


def _flattened(draft: Draft) -> None:
    patch = int(draft.find("patch_size", default=8, part="vision"))
    size = 2 + draft.channels() * patch * patch
    places = torch.stack(torch.meshgrid(torch.arange(1, 5), torch.arange(1, 5), indexing="ij"), -1).reshape(1, 16, 2)
    patches = torch.cat(
        [places.expand(draft.batch, 16, 2).to(draft.dtype), draft.floats((draft.batch, 16, size - 2))], -1
    )
    if "flattened_patches" in draft.names:
        draft.values["flattened_patches"] = patches
        draft.values["attention_mask"] = torch.ones((draft.batch, 16), dtype=torch.long)


def _two_resolutions(draft: Draft) -> None:
    if "high_res_pixel_values" in draft.names:
        size = int(draft.config.high_res_vision_config.image_size)
        draft.values["high_res_pixel_values"] = draft.floats((draft.batch, draft.channels(), size, size))


def _without_sound(draft: Draft) -> None:
    draft.values.pop("input_values", None)


def _phrases(draft: Draft) -> None:
    """Two phrases with the separators of BERT's vocabulary, whose ids the models know by heart."""
    row = [101, 5, 6, 1012, 7, 8, 1012, 102]
    draft.values["input_ids"] = torch.tensor([row] * draft.batch)
    draft.values["attention_mask"] = torch.ones((draft.batch, len(row)), dtype=torch.long)


def _embedded(draft: Draft) -> None:
    """Hidden states in the place of a waveform, for a model without its prenets."""
    if "decoder_input_values" in draft.names and "labels" not in draft.names:
        width = int(draft.config.hidden_size)
        draft.values["input_values"] = draft.floats((draft.batch, draft.length, width))
        draft.values["decoder_input_values"] = draft.floats((draft.batch, draft.length, width))


def _unmasked(draft: Draft) -> None:
    draft.values.pop("input_features_mask", None)


def _books(draft: Draft) -> None:
    books = int(draft.find("num_codebooks", default=32)) + 1
    draft.values["input_ids"] = draft.tokens((draft.batch, draft.length, books)) % 16


def _merged(draft: Draft) -> None:
    for name in ("merge_sizes", "image_merge_sizes"):
        if name in draft.names:
            draft.values[name] = torch.tensor([2] * draft.batch)


def _positioned_patches(draft: Draft) -> None:
    """Patches in a row with their places, for the vision parts of Gemma 4."""
    if "pixel_values" not in draft.values:
        return
    patch, side = int(draft.find("patch_size", default=8, part="vision")), 6
    places = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"), -1)
    draft.values["pixel_values"] = draft.floats((draft.batch, side * side, draft.channels() * patch * patch)).sigmoid()
    for name in ("pixel_position_ids", "image_position_ids"):
        if name in draft.names:
            draft.values[name] = places.reshape(1, -1, 2).repeat(draft.batch, 1, 1)


def _task(draft: Draft) -> None:
    draft.values["task_inputs"] = draft.tokens((draft.batch, int(draft.find("task_seq_len", default=77))))


def _forecast(draft: Draft) -> None:
    shape = (draft.batch, int(draft.find("context_length", default=64)))
    draft.values["past_values"] = draft.floats(shape)
    if "past_values_padding" in draft.names:
        draft.values["past_values_padding"] = torch.zeros(shape, dtype=torch.long)
        draft.values["freq"] = torch.zeros((draft.batch, 1), dtype=torch.long)


def _patch_images(draft: Draft) -> None:
    """The flat patches as small images, all in one row."""
    _single_patches(draft)
    if "pixel_values" in draft.values:
        draft.values["pixel_values"] = draft.values["pixel_values"].unsqueeze(0)


def _no_cache(draft: Draft) -> None:
    draft.values["use_cache"] = False


INPUTS: dict[str, Callable[[Draft], None]] = {
    "blt": _no_cache,
    "decision_transformer": _decisions,
    "deepseek_vl_hybrid": _two_resolutions,
    "dia": _channels_of_codes,
    "fuyu": _without_pixels,
    "granite4_vision": _tiled_images,
    "idefics": _image_per_text,
    "instructblip": _query_text,
    "instructblipvideo": _query_text,
    "kimi_k25": _single_patches,
    "kimi_k25_vision": _single_patches,
    "kosmos-2": _image_places,
    "lighton_ocr": _sized_images,
    "llava_next": _tiled_images,
    "llava_next_video": _tiled_images,
    "llava_onevision": _tiled_images,
    "longformer": _separators,
    "lxmert": _objects,
    "mistral3": _sized_images,
    "mllama": _tiles,
    "mllama_vision_model": _tiles,
    "musicgen": _codebooks,
    "musicgen_decoder": _codebooks,
    "musicgen_melody": _codebooks,
    "musicgen_melody_decoder": _codebooks,
    "pix2struct": _flattened,
    "pix2struct_vision_model": _flattened,
    "grounding-dino": _phrases,
    "mm-grounding-dino": _phrases,
    "speecht5": _embedded,
    "granite_speech": _unmasked,
    "granite_speech_plus": _unmasked,
    "kyutai_speech_to_text": _books,
    "video_llama_3": _merged,
    "video_llama_3_vision": _merged,
    "gemma4": _positioned_patches,
    "gemma4_vision": _positioned_patches,
    "oneformer": _task,
    "timesfm": _forecast,
    "mistral_large4": _sized_images,
    "paddleocr_vl": _patch_images,
    "csm": _without_sound,
}
"""Changes to the drafted inputs by model type, before the image tokens are placed."""
