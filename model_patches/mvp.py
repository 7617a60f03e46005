"""MVP: learned prompts reach the blocks as dicts of `prev_key` and `prev_value` tensors (all releases)."""

CONTAINERS = {"self_attn_prompt", "cross_attn_prompt"}
PARTS = {"mvp": {"MvpEncoder": "MvpConfig", "MvpDecoder": "MvpConfig"}}
