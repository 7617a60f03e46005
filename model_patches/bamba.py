"""Bamba and later hybrids: Mamba heads, times their size, give the width (transformers 4.52 to 5.24.0)."""

_HYBRID = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_d_ssm": 128, "mamba_chunk_size": 16}
TINY = {"bamba": {**_HYBRID, "attn_layer_indices": [1]}, ("falcon_h1", "granitemoehybrid"): _HYBRID}
SHOWN = {"granitemoehybrid": {"layer_types": ["mamba", "attention"] * 16}}
