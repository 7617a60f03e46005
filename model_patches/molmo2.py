"""Molmo2: flat patches by crop, and the patches that each image token pools (transformers 5.23.0 to 5.24.0)."""

TINY = {"molmo2_adapter": {"vision_feature_layer": [1, 0]}, "molmo2_vision": {"image_size": [32, 32], "patch_size": 8}}
_PATCHES = "floats(batch, 16, channels * patch_size * patch_size)"
INPUTS = {
    "molmo2": {
        "pixel_values": _PATCHES,
        "image_token_pooling": "pooled(4)",
        "image_grids": "rows([2, 2, 0, 0])",
        "image_num_crops": "ones(batch)",
    },
    "molmo2_adapter": {
        "image_features": "floats(batch, 64, hidden_size * vision_feature_layer)",
        "pooled_patches_idx": "pooled(8)",
    },
    "molmo2_vision": {"pixel_values": _PATCHES},
}
