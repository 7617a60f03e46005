"""Granite 4 Vision: image tiles, and the vision layers that feed the text part (transformers 5.23.0 to 5.24.0)."""

_PINPOINTS = {"image_grid_pinpoints": [[32, 32]]}
TINY = {
    "granite4_vision": {
        **_PINPOINTS,
        "deepstack_layer_map": [[-1, 0]],
        "downsample_rate": "1/2",
        "spatial_target_layers": [0, 1, 0, 1],
    }
}
INPUTS = {
    "granite4_vision": {"pixel_values": "floats(batch, 2, channels, height, width)", "image_sizes": "rows([32, 32])"}
}
