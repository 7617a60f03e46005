"""Swin2SR: two stages, each with as many blocks and heads (transformers 4.52 to 5.24.0)."""

TINY = {"swin2sr": {"depths": [2, 2], "image_size": 32, "num_heads": [4, 4]}}
