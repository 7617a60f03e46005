"""X-CLIP: its vision part takes the frames of clips one by one (transformers 4.52 to 5.24.0)."""

INPUTS = {"XCLIPVisionModel": {"pixel_values": "shaped(-1, channels, height, width)"}}
