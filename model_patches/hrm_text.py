"""HRM: a stack of layers inside each of its layers (transformers 5.23.0 to 5.24.0)."""

KEPT = {"hrm_text": ("num_hidden_layers",)}
