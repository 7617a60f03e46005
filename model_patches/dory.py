"""Dory: its layer types list attention and MLPs as layers of their own (transformers 5.24.0)."""

TINY = {
    "dory": {
        "n_input_layers": 2,
        "n_recurrent_layers": 2,
        "n_output_layers": 2,
        "layer_types": ["sliding_attention", "mlp", "full_attention", "mlp", "sliding_attention", "mlp"],
    }
}
