"""Hunyuan-VL: four rotary sections, which fill half a head (transformers 5.23.0 to 5.24.0)."""

FITTED = {"hunyuan_vl_text": {"rope_parameters": {"mrope_section": [16, 16, 16, 16]}}}
