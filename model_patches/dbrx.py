"""DBRX: released checkpoints give the attention a rotary base and a clip (transformers 4.52 to 5.24.0)."""

TINY = {"dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}}}
