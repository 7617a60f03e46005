"""MobileViT: its stages halve an image five times (transformers 4.52 to 5.24.0)."""

TINY = {("mobilevit", "mobilevitv2"): {"image_size": 64}}
