"""IDEFICS: images in a list for each text, and a mask of the tokens that attend to them (4.52 to 5.24.0)."""

INPUTS = {
    "idefics": {
        "pixel_values": "shaped(batch, 1, channels, height, width)",
        "image_attention_mask": "ones(batch, length, 1)",
    }
}
