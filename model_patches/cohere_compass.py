"""Cohere Compass: rotary sections for each kind of layer (transformers 5.23.0 to 5.24.0)."""

_SECTIONS = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
TINY = {"cohere_compass_text": {"rope_parameters": {"full_attention": _SECTIONS, "sliding_attention": _SECTIONS}}}
