"""Janus: the vision part is projected to the width of the text (transformers 4.52 to 5.24.0)."""

FITTED = {"janus_vision_model": {"projection_dim": 4096}}
