"""LLaVA-NeXT and its relatives: the whole image, then tiles of the first resolution (transformers 4.52 to 5.24.0)."""

_PINPOINTS = {"image_grid_pinpoints": [[32, 32]]}
TINY = {("llava_next", "llava_next_video", "llava_onevision"): _PINPOINTS}
INPUTS = {
    ("llava_next", "llava_next_video", "llava_onevision"): {
        "pixel_values": "floats(batch, 2, channels, height, width)",
        "image_sizes": "rows([32, 32])",
    }
}
