"""Perceiver: its learned position embeddings can be many times larger than its blocks (all releases)."""

BLOCKS = {"PerceiverLayer"}
TINY = {"perceiver": {"train_size": (16, 16), "num_latents": 8, "num_cross_attention_heads": 1}}
INPUTS = {
    "PerceiverForOpticalFlow": {"inputs": "floats(batch, 2, 27, 16, 16)"},  # the patches of two frames
    "PerceiverModel": {"inputs": "floats(batch, length, d_model)"},
}
