"""MiniCPM-V 4.7 and MiniCPM-OCR: one strip with the patches of all images (transformers 5.23.0 to 5.24.0)."""

TINY = {("minicpm_ocr", "minicpm_ocr_vision", "minicpmv4_7", "minicpmv4_7_vision"): {"insert_layer_id": 0}}
INPUTS = {
    ("minicpm_ocr_vision", "minicpmv4_7_vision"): {
        "pixel_values": "floats(1, channels, patch_size, 16 * batch * patch_size)",
        "target_sizes": "rows([4, 4])",
    }
}
