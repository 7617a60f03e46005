"""Depth Pro: it scales an image down until it is one patch (transformers 4.52 to 5.24.0)."""

TINY = {"depth_pro": {"patch_size": 32, "intermediate_hook_ids": [1, 0], "merge_padding_value": 1}}
INPUTS = {"depth_pro": {"pixel_values": "floats(batch, channels, 4 * patch_size, 4 * patch_size)"}}
