"""Mistral 3 and LightOn OCR: images are cropped to their sizes (transformers 4.52 to 5.24.0)."""

INPUTS = {("lighton_ocr", "mistral3"): {"image_sizes": "rows([height, width])"}}
