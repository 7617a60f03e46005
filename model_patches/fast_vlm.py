"""FastVLM: the vision part names the width of its backbone (transformers 5.23.0 to 5.24.0)."""

TINY = {"fast_vlm": {"vision_config": {"hidden_size": 64}}}  # what the tiny backbone gives
