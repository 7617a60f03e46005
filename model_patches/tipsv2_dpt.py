"""TIPSv2 DPT: the neck has a width for each stage (transformers 5.23.0 to 5.24.0)."""

TINY = {"tipsv2_dpt": {"neck_hidden_sizes": [16, 32, 64, 64]}}
