"""DeepSeek-OCR 2: a downsampling SAM encoder, and dense and sparse layers for text (transformers 5.23.0 to 5.24.0)."""

TINY = {
    "deepseek_ocr2_sam_vision_model": {"downsample_channels": [64, 64]},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"]},
}
PARTS = {"deepseek_ocr2": {"DeepseekOcr2SamVisionEncoder": "DeepseekOcr2SamVisionConfig"}}
