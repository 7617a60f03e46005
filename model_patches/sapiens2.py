"""Sapiens 2: the channel counts of its heads (transformers 5.23.0 to 5.24.0)."""

TINY = {
    "sapiens2": {
        "head_config": {
            "upsample_out_channels": [16, 16],
            "conv_out_channels": [16],
            "scale_conv_out_channels": [8],
            "scale_final_hidden_sizes": [16, 8],
        }
    }
}
