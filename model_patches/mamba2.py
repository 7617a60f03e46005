"""Mamba-2: heads and their size multiply to the inner width (transformers 4.52 to 5.24.0)."""

TINY = {"mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "chunk_size": 16}}
