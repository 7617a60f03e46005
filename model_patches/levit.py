"""LeViT: its stages halve an image four times (transformers 4.52 to 5.24.0)."""

TINY = {"levit": {"image_size": 64, "patch_size": 16}}
