"""EfficientLoFTR: it matches points in two images (transformers 4.57.6 to 5.24.0)."""

TINY = {
    "efficientloftr": {
        "out_features": [16, 16, 32, 64],
        "stage_num_blocks": [1, 1, 1, 2],
        "hidden_size": 64,
        "num_attention_heads": 8,  # the rotary part fills half the width
    }
}
INPUTS = {"efficientloftr": {"pixel_values": "floats(batch, 2, channels, height, width)"}}
