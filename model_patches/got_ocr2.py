"""GOT-OCR2: its vision encoder is not exported (transformers 4.52 to 5.24.0)."""

PARTS = {"got_ocr2": {"GotOcr2VisionEncoder": "GotOcr2VisionConfig"}}
