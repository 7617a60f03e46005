"""Ovis2: the default width is not that of its text (transformers 4.57.6 to 5.24.0)."""

FITTED = {"ovis2": {"hidden_size": 4096}}
