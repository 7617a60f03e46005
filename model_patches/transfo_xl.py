"""Transformer-XL: cutoffs of an adaptive softmax (transformers 4.52 to 4.57.6)."""

TINY = {"transfo-xl": {"cutoffs": [40, 80]}}
