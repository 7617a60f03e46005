"""PaddleOCR-VL: the vision part takes patches as small images (transformers 5.23.0 to 5.24.0)."""

TINY = {
    "paddleocr_vl_text": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    }
}
INPUTS = {
    "paddleocr_vl": {"pixel_values": "shaped(-1, channels, patch_size, patch_size)"},
    "paddleocr_vl_vision": {"pixel_values": "shaped(1, -1, channels, patch_size, patch_size)"},
}
