"""GLM-4V and its relatives: rotary sections that cover half of a head (transformers 4.57.6 to 5.24.0)."""

_HALF_MROPE = {"rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 2]}}
_HALF_ROTATED = {"rope_parameters": {"partial_rotary_factor": 0.5}}
TINY = {
    ("glm4v_moe_text", "Glm4vMoe_text"): _HALF_MROPE,
    "glm4v_text": {"rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3]}},
}
LEFT_OUT = {"GlmImageVQVAE": "a codec without a forward, which other classes call by its parts"}
FITTED = {("glm46v_text", "glm4v_text", "glm_image_text"): _HALF_ROTATED, "glm4v_moe_text": {"head_dim": 128}}
INPUTS = {  # images turn into discrete tokens, which carry no gradient
    ("GlmImageForConditionalGeneration", "GlmImageModel"): {"pixel_values": None, "image_grid_thw": None}
}
