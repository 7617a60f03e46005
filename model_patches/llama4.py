"""Llama 4: the vision part's width is that of shuffled pixels (transformers 4.52 to 5.24.0)."""

TINY = {"llama4_vision_model": {"intermediate_size": 256, "vision_output_dim": 64}}
FITTED = {"llama4_vision_model": {"hidden_size": 1408, "vision_output_dim": 4096}}
