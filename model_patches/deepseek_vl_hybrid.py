"""DeepSeek-VL hybrid: each image also at the resolution of the second vision part (transformers 4.57.6 to 5.24.0)."""

_SIDE = "high_res_vision_config.image_size"
INPUTS = {"deepseek_vl_hybrid": {"high_res_pixel_values": f"floats(batch, channels, {_SIDE}, {_SIDE})"}}
