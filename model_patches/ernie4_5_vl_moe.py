"""ERNIE 4.5 VL: rotary sections of height, width and time, in this order (transformers 5.23.0 to 5.24.0)."""

TINY = {
    "ernie4_5_vl_moe_text": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0, "mrope_section": [3, 3, 2]}
    }
}
LEFT_OUT = {
    (
        "Ernie4_5_VL_MoeForConditionalGeneration",
        "Ernie4_5_VL_MoeModel",
        "Ernie4_5_VL_MoeTextModel",
        "Ernie4_5_VL_MoeVisionTransformerPretrainedModel",
    ): "an old name of the class without the second underscore"
}
