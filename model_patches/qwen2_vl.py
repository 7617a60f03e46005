"""Qwen-VL and ColQwen2: rotary sections for time, height and width, and flat patches (transformers 4.52 to 5.24.0)."""

_VISION_ENDS = {"+vision_start_token_id": 118, "+vision_end_token_id": 119}  # not declared in 4.52
_MROPE = {"rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3]}}
_SECTIONS = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
TINY = {
    ("qwen2_5_vl", "qwen2_vl"): _VISION_ENDS,
    ("qwen2_5_vl_text", "qwen2_vl_text"): {**_MROPE, "rope_parameters": _SECTIONS},
    ("qwen3_vl_moe_text", "qwen3_vl_text"): _MROPE,
}
PARTS = {"qwen2_vl": {"Qwen2VisionTransformerPretrainedModel": "Qwen2VLVisionConfig"}}
FITTED = {"qwen2_vl_vision": {"hidden_size": 8192}}
INPUTS = {"colqwen2": {"pixel_values": "shaped(batch, -1, channels * temporal_patch_size * patch_size * patch_size)"}}
