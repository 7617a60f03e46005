"""Inkling 2: squares of patches with the channels last, one for each token (5.23.0 to 5.24.0)."""

_SIDE = "patch_size * spatial_merge_size"
INPUTS = {
    ("inkling2", "inkling2_loop", "inkling2_vision"): {
        "pixel_values": f"floats(4 * batch, {_SIDE}, {_SIDE}, channels)",
        "image_grid_thw": "rows([1, 2, 2])",
    }
}
