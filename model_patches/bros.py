"""BROS: relations start at the first token of each box, which a mask marks (transformers 4.52 to 5.24.0)."""

INPUTS = {
    "BrosSpadeEEForTokenClassification": {
        "bbox_first_token_mask": "trues(batch, length)",
        "initial_token_labels": "integers(batch, length, below=classes)",
        "subsequent_token_labels": "integers(batch, length, below=classes)",
    }
}
