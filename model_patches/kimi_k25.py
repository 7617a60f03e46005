"""Kimi K2.5: the vision part takes patches as small images (transformers 5.23.0 to 5.24.0)."""

INPUTS = {("kimi_k25", "kimi_k25_vision"): {"pixel_values": "shaped(-1, channels, patch_size, patch_size)"}}
