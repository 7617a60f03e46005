"""What single model families need beyond the general rules, as data: changes to their configurations, by model type.

The general rules are in `field_rules`; what families need in their inputs is in `family_inputs`.
"""

from __future__ import annotations

from typing import Any

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
_VISION_ENDS = {"+vision_start_token_id": 118, "+vision_end_token_id": 119}  # 4.52 declares none
_SECTIONS = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
_HALF_MROPE = {"rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 2]}}
_CORNERS = {"coordinate_size": 8, "shape_size": 16}
_PHRASES = {"text_config": {"vocab_size": 1100}, "max_text_len": 8}
_ZAMBA = {
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "num_hidden_layers": 5,
    "layers_block_type": ["mamba", "mamba", "hybrid", "mamba", "hybrid"],
}
_HIERA = {  # stages differ in width: the pooled residual is projected only then
    "embed_dim_per_stage": [16, 32, 64, 128],
    "num_attention_heads_per_stage": [1, 2, 2, 4],
    "blocks_per_stage": [2, 2, 2, 2],
    "global_attention_blocks": [3, 5],
    "image_size": [64, 64],
    "hidden_size": 16,
}
_CODEC = {"num_filters": 4}
_STRIPES = {  # kernels of a text detector: tall, wide and square ones, with stride and padding
    "kernel_list": [3, 2, 2],
    "scale_factor_list": [1, 2, 4, 8],
    "intraclass_block_config": {
        "reduce_channel": [1, 1, 0],
        "return_channel": [1, 1, 0],
        "vertical_long_to_small_conv_longratio": [[7, 1], [1, 1], [3, 0]],
        "vertical_long_to_small_conv_midratio": [[5, 1], [1, 1], [2, 0]],
        "vertical_long_to_small_conv_shortratio": [[3, 1], [1, 1], [1, 0]],
        "horizontal_small_to_long_conv_longratio": [[1, 7], [1, 1], [0, 3]],
        "horizontal_small_to_long_conv_midratio": [[1, 5], [1, 1], [0, 2]],
        "horizontal_small_to_long_conv_shortratio": [[1, 3], [1, 1], [0, 1]],
        "symmetric_conv_long_longratio": [7, 1, 3],
        "symmetric_conv_long_midratio": [5, 1, 2],
        "symmetric_conv_long_shortratio": [3, 1, 1],
    },
}
_SQUARE_STAGES = {  # each halves height and width alike
    "stem_channels": [3, 16, 32],
    "block_configs": [
        [[3, 32, 32, 1, True]],
        [[3, 32, 64, 2, False]],
        [[3, 64, 64, 2, False]],
        [[3, 64, 64, 2, True]],
    ],
    "depths": [1, 1, 1, 1],
    "stage_out_channels": [32, 64, 64, 64],
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
    "out_indices": [1, 2, 3, 4],
}
_PLAIN_TOWER = {  # one row of features per patch; where transformers insists on timm, it takes the last two lines
    "model_type": "vit",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
    "architecture": "test_vit",
    "model_args": {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 4},
}

CONFIG: dict[str, dict[str, Any]] = {
    "align": {"projection_dim": 320},  # what the vision part's last stage gives
    "align_vision_model": _EFFICIENT,
    "apertus1p5": {"image_token_id": 120, "audio_token_id": 121, "image_token_offset": 80, "audio_token_offset": 88},
    "apertus1p5_vision_tokenizer": {
        "base_channels": 32,
        "channel_multiplier": (1, 1),
        "codebook_size": 8,
        "embed_dim": 32,
        "latent_channels": 32,
        "num_res_blocks": 1,
        "resolution": 32,
    },
    "aria": {"projector_patch_to_query_dict": {16: 4}, "max_value_projector_patch_to_query_dict": 4},
    "autoformer": _SERIES,
    "bamba": {**_HYBRID, "attn_layer_indices": [1], "num_hidden_layers": 2},
    "bit": {"num_groups": 4},
    "blip-2": _IMAGE_TOKEN,
    "bridgetower": {"+contrastive_hidden_size": 64, "+logit_scale_init_value": 2.6592},
    "chameleon": {"vocabulary_map": {"<image>": 120, **_CODES}},
    "chameleon_vqgan": {"num_embeddings": 8},
    "clap_audio_model": {"hidden_size": 128},  # the width of the last stage
    "clipseg": {"extract_layers": [0, 1]},
    "clvp_decoder": {"num_attention_heads": 2, "decoder_fixing_codes": [83, 45, 45, 100]},
    "clvp_encoder": {"num_attention_heads": 2},  # its rotary part has at least 32 channels
    "cohere_compass_text": {"rope_parameters": {"full_attention": _SECTIONS, "sliding_attention": _SECTIONS}},
    "cvt": {"depth": (1, 2, 3)},  # the third stage reads its drop path at index 2
    "dac": {"encoder_hidden_size": 8, "decoder_hidden_size": 64, "hidden_size": 128},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_ocr2_sam_vision_model": {"downsample_channels": [64, 64]},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"]},
    "deepseek_v2": {"n_routed_experts": 4, "topk_method": "greedy"},
    "depth_pro": {
        "patch_size": 32,
        "image_model_config": {"image_size": 32},
        "patch_model_config": {"image_size": 32},
        "fov_model_config": {"image_size": 32},
        "intermediate_hook_ids": [1, 0],
        "merge_padding_value": 1,
    },
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 64},
    "dory": {  # it writes attention and MLP down as layers of their own
        "num_hidden_layers": 6,
        "n_input_layers": 2,
        "n_recurrent_layers": 2,
        "n_output_layers": 2,
        "layer_types": ["sliding_attention", "mlp", "full_attention", "mlp", "sliding_attention", "mlp"],
    },
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "dots3_note_text": {
        "num_key_value_heads": 4,
        "head_dim": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "per_layer_config": {2: {"kv_lora_rank": 32}},
    },
    "efficientloftr": {
        "out_features": [16, 16, 32, 64],
        "stage_num_blocks": [1, 1, 1, 2],
        "hidden_size": 64,
        "num_attention_heads": 8,  # the rotary part fills half the width
    },
    "efficientnet": _EFFICIENT,
    "emu3": {"vocabulary_map": {"<image>": 120, "<|extra_200|>": 121, **_VISUAL_TOKENS}},
    "emu3_vqgan": {"codebook_size": 8, "base_channels": 32, "hidden_size": 128},
    "encodec": _CODEC,
    "ernie4_5_vl_moe_text": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0, "mrope_section": [3, 3, 2]},
        "rope_scaling": {"rope_type": "default", "mrope_section": [3, 3, 2]},
    },
    "falcon_h1": _HYBRID,
    "fast_vlm": {"vision_config": {"hidden_size": 64}},  # what the tiny backbone gives
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 16}},  # a quarter of the width
    "gemma3n": {"audio_soft_tokens_per_image": 4, "vision_soft_tokens_per_image": 4},
    "gemma3n_audio": {"vocab_offset": 112, "vocab_size": 16},
    "gemma3n_vision": {
        "model_args": {"channel_multiplier": 0.01, "msfa_output_resolution": 2},
        "vocab_offset": 96,
        "vocab_size": 16,
    },
    "glm4v_moe_text": _HALF_MROPE,
    "glm4v_text": _MROPE,
    "Glm4vMoe_text": _HALF_MROPE,
    "glm5_next_text": {"index_kpool": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "window_size": 8},
    "granite4_vision": {
        **_PINPOINTS,
        "deepstack_layer_map": [[-1, 0]],
        "downsample_rate": "1/2",
        "spatial_target_layers": [0, 1, 0, 1],
    },
    "granite_speech5_encoder": {"context_size": 16},
    "granite_speech_encoder": {"context_size": 16, "max_pos_emb": 32},
    "granite_speech_plus_encoder": {"context_size": 16, "max_pos_emb": 32},
    "granitemoehybrid": _HYBRID,
    "grounding-dino": _PHRASES,
    "hiera": {"decoder_hidden_size": 64, "decoder_depth": 2, "decoder_num_heads": 4},
    "informer": _SERIES,
    "instructblip": _IMAGE_TOKEN,
    "instructblipvideo": {"video_token_id": 120, "video_token_index": 120},
    "layoutlmv2": _CORNERS,
    "layoutlmv3": _CORNERS,
    "led": {"attention_window": [8, 8], "max_encoder_position_embeddings": 128},
    "levit": {"image_size": 64, "patch_size": 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "lilt": {"hidden_size": 96, "intermediate_size": 96},  # six coordinates share the width
    "llama4_vision_model": {"intermediate_size": 256, "vision_output_dim": 64},
    "llava_next": _PINPOINTS,
    "llava_next_video": _PINPOINTS,
    "llava_onevision": _PINPOINTS,
    "lw_detr": {"projector_scale_factors": [1.0]},
    "lw_detr_vit": {"num_windows": 4, "num_windows_side": 2, "image_size": 64, "pretrain_image_size": 64},
    "mamba2": _MAMBA2,
    "mimi": _CODEC,
    "minicpm_ocr": {"insert_layer_id": 0},
    "minicpm_ocr_vision": {"insert_layer_id": 0},
    "minicpmv4_7": {"insert_layer_id": 0},
    "minicpmv4_7_vision": {"insert_layer_id": 0},
    "mllama_text_model": {
        "cross_attention_layers": [1],
        "num_hidden_layers": 2,
        "rope_scaling": {"rope_type": "default"},
    },
    "mllama_vision_model": {"intermediate_layers_indices": [0, 1], "vision_output_dim": 192},
    "mm-grounding-dino": _PHRASES,
    "mobilevit": {"image_size": 64},
    "mobilevitv2": {"image_size": 64},
    "molmo2_adapter": {"vision_feature_layer": [1, 0]},
    "molmo2_vision": {"image_size": [32, 32], "patch_size": 8},
    "moonshine_streaming": {"+num_key_value_heads": 4},
    "muse_glimmer": {"out_hidden_size": 256},  # the merged width of four patches
    "muse_glimmer_assistant": {"layer_types": ["full_attention"] * 2},  # windows need its cache
    "muse_spark": {"out_hidden_size": 256},
    "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16, "chunk_size": 16},
    "nemotron_h_omni": {"image_token_id": 120},
    "neucodec": {"encoder_hidden_size": 8, "quantization_dim": 128},
    "omdet-turbo": {
        "apply_layernorm_after_vision_backbone": False,  # its norms want channels last, as timm has them
        "d_model": 32,
        "encoder_hidden_dim": 32,
        "vision_features_channels": [32, 32, 32],
        "decoder_hidden_dim": 32,  # not the width of classes: only then has the decoder a projection to look for
    },
    "paddleocr_vl_text": {"rope_parameters": _SECTIONS},
    "perceiver": {"train_size": (16, 16), "num_latents": 8, "num_cross_attention_heads": 1},
    "perception_lm": {"vision_config": _PLAIN_TOWER},
    "pi0": {"chunk_size": 8},
    "pix2struct_text_model": {"+initializer_range": 0.02},
    "pp_doclayout_v2": {"class_thresholds": [0.0] * 100, "class_order": [i % 20 for i in range(100)]},
    "pp_ocrv5_server_det": _STRIPES,
    "pp_ocrv6_medium_det": {**_STRIPES, "backbone_config": _SQUARE_STAGES},
    "pp_ocrv6_small_det": {"backbone_config": _SQUARE_STAGES, "layer_list_out_channels": [32, 64, 64, 64]},
    "qwen2_5_omni_dit": {"enc_channels": [64, 64, 64, 64, 192]},  # the last holds the three before it
    "qwen2_5_omni_thinker": {"+vision_start_token_id": 121, "+vision_end_token_id": 122},
    "qwen2_5_vl": _VISION_ENDS,
    "qwen2_5_vl_text": {**_MROPE, "rope_parameters": _SECTIONS},
    "qwen2_vl": _VISION_ENDS,
    "qwen2_vl_text": {**_MROPE, "rope_parameters": _SECTIONS},
    "qwen3_omni_moe_talker_text": {**_MROPE, "+shared_expert_intermediate_size": 64},
    "qwen3_omni_moe_text": _MROPE,
    "qwen3_omni_moe_thinker": {"+vision_start_token_id": 121, "+vision_end_token_id": 122},
    "qwen3_vl_moe_text": _MROPE,
    "qwen3_vl_text": _MROPE,
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
    },
    "reformer": {
        "axial_pos_shape": [4, 4],
        "axial_pos_embds_dim": [32, 32],
        "attn_layers": ["local", "lsh"],
        "local_attn_chunk_length": 4,
        "lsh_attn_chunk_length": 4,
        "num_buckets": 2,
    },
    "sam2_hiera_det_model": _HIERA,
    "sam2_prompt_encoder": {"image_size": 64, "patch_size": 16},
    "sam2_vision_model": {
        "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
        "backbone_channel_list": [128, 64, 32, 16],
    },
    "sam3_vision_model": {"backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]},
    "sam_hq_prompt_encoder": {"image_embedding_size": 4},
    "sam_prompt_encoder": {"image_embedding_size": 4},
    "sapiens2": {
        "head_config": {
            "upsample_out_channels": [16, 16],
            "conv_out_channels": [16],
            "scale_conv_out_channels": [8],
            "scale_final_hidden_sizes": [16, 8],
        }
    },
    "seggpt": {
        "image_size": [64, 32],
        "num_hidden_layers": 5,
        "intermediate_hidden_state_indices": [1, 2, 3, 4],
        "merge_index": 0,
    },
    "shieldgemma2": {"+yes_token_index": 10, "+no_token_index": 11},
    "step3p5": {"sliding_window": 8},
    "step3p7_text": {"sliding_window": 8},
    "swin2sr": {"depths": [2, 2], "image_size": 32, "num_heads": [4, 4]},
    "time_series_transformer": _SERIES,
    "timesfm2_5": {"context_length": 128},
    "tipsv2_dpt": {"neck_hidden_sizes": [16, 32, 64, 64]},
    "transfo-xl": {"cutoffs": [40, 80], "vocab_size": 128},
    "tvp": {"max_img_size": 64, "visual_prompt_size": 8},
    "uvdoc": {
        "backbone_config": {"out_features": [f"stage{i}" for i in range(1, 7)], "out_indices": [1, 2, 3, 4, 5, 6]}
    },
    "vibevoice_acoustic_tokenizer": _CODEC,
    "vibevoice_acoustic_tokenizer_decoder": _CODEC,
    "vibevoice_acoustic_tokenizer_encoder": _CODEC,
    "vitdet": {"image_size": 64, "pretrain_image_size": 64},
    "vitmatte": {"fusion_hidden_sizes": [32, 16, 16, 8]},
    "vits": {
        "duration_predictor_num_flows": 2,
        "posterior_encoder_num_wavenet_layers": 2,
        "prior_encoder_num_flows": 2,
        "prior_encoder_num_wavenet_layers": 2,
        "resblock_dilation_sizes": [[1, 3], [1, 3], [1, 3]],
    },
    "vjepa2": {"crop_size": 64},
    "voxtral": {"audio_token_id": 120},
    "wavtokenizer_encoder": {"codebook_size": 8},
    "xcodec2": {"encoder_hidden_size": 8, "quantization_dim": 128},
    "xlstm": {"hidden_size": 128, "embedding_dim": 128},  # the cache rounds its widths up to multiples of 64
    "xmod": _ONE_LANGUAGE,
    "zamba": _ZAMBA,
    "zamba2": {"chunk_size": 16},
}
"""Changes by model type on top of the general rules, for attributes that the configuration declares.

A name with a `+` is set even if undeclared; a dictionary for a nested configuration changes the fields it names.
"""

KEPT: dict[str, tuple[str, ...]] = {
    "align_vision_model": ("hidden_dim", "in_channels", "out_channels"),
    "autoformer": ("feature_size", "input_size"),
    "efficientnet": ("hidden_dim", "in_channels", "out_channels"),
    "gemma3n_vision": ("hidden_size",),  # timm has it fixed
    "hrm_text": ("num_hidden_layers",),
    "informer": ("feature_size", "input_size"),
    "pp_lcnet_v4": ("stem_channels",),
    "qwen3_asr_encoder": ("n_window", "n_window_infer"),
    "qwen3_omni_moe_audio_encoder": ("n_window", "n_window_infer"),
    "superpoint": ("keypoint_decoder_dim",),
    "time_series_transformer": ("feature_size", "input_size"),
    "uvdoc": ("bridge_connector",),
    "uvdoc_backbone": ("resnet_configs", "resnet_head", "stage_configs"),
}
"""Attributes that no rule may change, by model type: the model's code depends on their value."""

SHOWN: dict[str, dict[str, Any]] = {
    "deberta": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "norm_rel_ebd": "layer_norm"},
    "gemma4_text": {"num_kv_shared_layers": 2},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 16},
    "zamba2": {"use_mem_rope": True},  # 5.0.0 runs with it alone
}
"""Parts that a class disables by default and trainings use: enabled if only the class is given."""

CLASS_OPTIONS: dict[str, dict[str, Any]] = {
    "BeitForSemanticSegmentation": {
        "num_hidden_layers": 4,
        "stage_names": ["stem", "stage1", "stage2", "stage3", "stage4"],
        "out_indices": [1, 2, 3, 4],
    },
    "Blip2ForImageTextRetrieval": {"use_qformer_text_input": True},
    "Blip2TextModelWithProjection": {"use_qformer_text_input": True},
    "FlavaImageCodebook": {"freeze": False},
    "Qwen3OmniMoeTalkerForConditionalGeneration": {"spatial_merge_size": 2},
    "ReformerModelWithLMHead": {"is_decoder": True},
    "RetriBertModel": {"position_embedding_type": "absolute"},
    "T5GemmaEncoderModel": {"is_encoder_decoder": False},
    "TvpForVideoGrounding": {"type_vocab_size": 2},
    "TvpModel": {"type_vocab_size": 2},
    "ViltForImagesAndTextClassification": {"num_images": 2, "modality_type_vocab_size": 3},
}
"""Attributes by model class, for classes that need another value than the others of their configuration."""
