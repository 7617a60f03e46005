"""ViTMatte: a decoder as small beside its backbone as the real one's (4.52 to 5.24.0)."""

TINY = {"vitmatte": {"fusion_hidden_sizes": [32, 16, 16, 8]}}
