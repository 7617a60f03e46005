"""FLAVA: masked patches and tokens, and a codebook for the targets (transformers 4.52 to 5.24.0)."""

OPTIONS = {"FlavaImageCodebook": {"freeze": False}}
INPUTS = {
    "FlavaForPreTraining": {  # each code of the codebook stands for 8 pixels on each side
        "codebook_pixel_values": "shares(batch, channels, 8 * (height // patch_size), 8 * (width // patch_size))",
        "bool_masked_pos": "alternate()",
        "input_ids_masked": "tokens(batch, length)",
        "mlm_labels": "copied(input_ids)",
        "itm_labels": "ones(batch)",
    }
}
