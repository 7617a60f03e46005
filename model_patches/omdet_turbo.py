"""OmDet-Turbo: names of classes, and a text that names the task (transformers 4.52 to 5.24.0)."""

TINY = {
    "omdet-turbo": {
        "apply_layernorm_after_vision_backbone": False,  # its norms want channels last, as timm has them
        "encoder_hidden_dim": 32,
        "vision_features_channels": [32, 32, 32],
        "decoder_hidden_dim": 32,  # not the width of classes: only then has the decoder a projection to look for
    }
}
INPUTS = {
    "omdet-turbo": {
        "classes_input_ids": "tokens(2 * batch, 6)",
        "classes_attention_mask": "ones(2 * batch, 6)",
        "tasks_input_ids": "tokens(batch, 6)",
        "tasks_attention_mask": "ones(batch, 6)",
        "classes_structure": "full(batch, value=2)",
    }
}
