"""Longformer: question answering needs three separators in each text (transformers 4.52 to 5.24.0)."""

INPUTS = {"longformer": {"input_ids": "placed(4, 8, -1, value=sep_token_id)"}}
