"""ViTMatte: a decoder as small, compared with its backbone, as at full size (transformers 4.52 to 5.24.0)."""

TINY = {"vitmatte": {"fusion_hidden_sizes": [32, 16, 16, 8]}}
