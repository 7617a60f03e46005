"""Dory: attention and MLP are written down as layers of their own (5.24.0)."""

TINY = {
    "dory": {
        "n_input_layers": 2,
        "n_recurrent_layers": 2,
        "n_output_layers": 2,
        "layer_types": ["sliding_attention", "mlp", "full_attention", "mlp", "sliding_attention", "mlp"],
    }
}
