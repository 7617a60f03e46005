"""Aya Vision: the default width of its vision part is not a multiple of its heads (transformers 4.52 to 5.24.0)."""

FITTED = {"aya_vision": {"vision_config": {"num_attention_heads": 16, "image_size": 364}}}
