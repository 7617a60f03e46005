"""BLT: a cache cannot be made, as its configuration has no count of layers (transformers 4.57.6 to 5.24.0)."""

INPUTS = {"blt": {"use_cache": False}}
