"""Inkling: audio as levels of each mel bin, images as patches with the channels last (5.23.0 to 5.24.0)."""

INPUTS = {
    ("inkling_audio", "inkling_mm_model", "inkling_vision"): {
        "audio_input_ids": "integers(batch, 6, n_mel_bins, below=mel_vocab_size)",
        "pixel_values": "floats(2 * batch, temporal_patch_size, patch_size, patch_size, channels)",
    }
}
