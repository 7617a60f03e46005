"""IDEFICS and its relatives: images in lists, image sizes that patches do not divide (transformers 4.52 to 5.24.0)."""

FITTED = {
    ("idefics3_vision", "smolvlm_vision"): {"image_size": 364, "patch_size": 14},
    "modernvbert": {"vision_config": {"image_size": 512}},
}
INPUTS = {
    "idefics": {
        "pixel_values": "shaped(batch, 1, channels, height, width)",
        "image_attention_mask": "ones(batch, length, 1)",
    }
}
