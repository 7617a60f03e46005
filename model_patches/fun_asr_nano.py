"""Fun-ASR-Nano: each row of features holds several neighbouring frames (transformers 5.23.0 to 5.24.0)."""

TINY = {"fun_asr_nano": {"adaptor_config": {"intermediate_size": 16}}}  # a quarter of the width
INPUTS = {
    ("fun_asr_nano", "fun_asr_nano_encoder"): {
        "input_features": "floats(batch, 64, mels * num_stacked_frames)",
        "input_features_mask": "ones(batch, 64)",
    }
}
