"""Qwen3-ASR: spectrograms of whole windows of the encoder (transformers 5.23.0 to 5.24.0)."""

KEPT = {"qwen3_asr_encoder": ("n_window", "n_window_infer")}
INPUTS = {
    ("qwen3_asr", "qwen3_asr_encoder"): {
        "+input_features": "floats(batch, mels, 4 * n_window)",  # the model for tokens passes them on
        "input_features_mask": "ones(batch, 4 * n_window)",
    }
}
