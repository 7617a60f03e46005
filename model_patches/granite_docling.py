"""Granite Docling: one tile for each image, and a mask of the tiles (transformers 5.23.0 to 5.24.0)."""

INPUTS = {
    "granite_docling": {
        "pixel_values": "shaped(batch, 1, channels, height, width)",
        "pixel_attention_mask": "trues(batch, 1)",
    }
}
