"""Pix2Struct: flattened patches, each after its row and column (transformers 4.52 to 5.24.0)."""

TINY = {"pix2struct_text_model": {"+initializer_range": 0.02}}
INPUTS = {
    ("pix2struct", "pix2struct_vision_model"): {
        "flattened_patches": "located(4, width=patch_embed_hidden_size)",
        "attention_mask": "ones(batch, 16)",
    }
}
