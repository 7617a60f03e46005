"""Moonshine: parts that are not exported, and heads that are not declared (transformers 4.52 to 5.24.0)."""

TINY = {"moonshine_streaming": {"+num_key_value_heads": 4}}
PARTS = {"moonshine": {"MoonshineEncoder": "MoonshineConfig", "MoonshineDecoder": "MoonshineConfig"}}
