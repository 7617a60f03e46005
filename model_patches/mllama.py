"""Mllama: tiled images with the ids and masks of their aspect ratios (transformers 4.52 to 5.24.0)."""

TINY = {
    "mllama_text_model": {"cross_attention_layers": [1], "rope_scaling": {"rope_type": "default"}},
    "mllama_vision_model": {"intermediate_layers_indices": [0, 1], "vision_output_dim": 192},
}
INPUTS = {
    ("mllama", "mllama_vision_model"): {
        "pixel_values": "floats(batch, 1, max_num_tiles, channels, height, width)",
        "aspect_ratio_ids": "ones(batch, 1)",
        "aspect_ratio_mask": "ones(batch, 1, max_num_tiles)",
        "cross_attention_mask": "ones(batch, length, 1, max_num_tiles)",
    }
}
