"""Inkling and Inkling 2: audio as levels of mel bins, patches with channels last (transformers 5.23.0 to 5.24.0)."""

_SIDE = "patch_size * spatial_merge_size"
INPUTS = {
    ("inkling_audio", "inkling_mm_model", "inkling_vision"): {
        "audio_input_ids": "integers(batch, 6, n_mel_bins, below=mel_vocab_size)",
        "pixel_values": "floats(2 * batch, temporal_patch_size, patch_size, patch_size, channels)",
    },
    ("inkling2", "inkling2_loop", "inkling2_vision"): {
        "pixel_values": f"floats(4 * batch, {_SIDE}, {_SIDE}, channels)",
        "image_grid_thw": "rows([1, 2, 2])",
    },
}
