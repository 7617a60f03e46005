"""BLT: its configuration has no count of layers to make a cache from (4.57.6 to 5.24.0)."""

INPUTS = {"blt": {"use_cache": False}}
