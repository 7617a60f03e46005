"""VITS: few flows and short stacks of convolutions (transformers 4.52 to 5.24.0)."""

TINY = {
    "vits": {
        "duration_predictor_num_flows": 2,
        "posterior_encoder_num_wavenet_layers": 2,
        "prior_encoder_num_flows": 2,
        "prior_encoder_num_wavenet_layers": 2,
        "resblock_dilation_sizes": [[1, 3], [1, 3], [1, 3]],
    }
}
