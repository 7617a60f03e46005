"""dots3.note: audio comes in chunks, each with the number of samples it stands for (transformers 5.23.0 to 5.24.0)."""

TINY = {
    "dots3_note_text": {
        "num_key_value_heads": 4,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "per_layer_config": {2: {"kv_lora_rank": 32}},
    }
}
INPUTS = {
    ("dots3_note", "dots3_note_audio_encoder"): {
        "input_features": "floats(batch, mels, 64)",
        "chunk_sample_lengths": "full(batch, value=64 * hop_length)",
    }
}
