"""V-JEPA 2: crops of clips that are as large as the tiny image (transformers 4.57.6 to 5.24.0)."""

TINY = {"vjepa2": {"crop_size": 64}}
