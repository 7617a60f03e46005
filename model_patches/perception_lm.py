"""PerceptionLM: a timm tower whose width the default configuration does not give (transformers 4.57.6 to 5.24.0)."""

TINY = {
    "perception_lm": {
        "vision_config": {  # one row of features per patch; releases that insist on timm read the last two entries
            "model_type": "vit",
            "hidden_size": 64,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 32,
            "patch_size": 8,
            "architecture": "test_vit",
            "model_args": {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 4},
        }
    }
}
FITTED = {
    "perception_lm": {
        "vision_config": {"architecture": "vit_pe_core_large_patch14_336", "model_args": {"embed_dim": 1024}}
    }
}
INPUTS = {"perception_lm": {"pixel_values": "shaped(batch, 1, channels, height, width)"}}
