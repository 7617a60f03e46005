"""LFM2-MoE: one layer with convolution, one with attention (transformers 5.23.0 to 5.24.0)."""

TINY = {"lfm2_moe": {"layer_types": ["conv", "full_attention"]}}
