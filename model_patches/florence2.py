"""Florence-2: its backbone takes an image as `hidden_states` (transformers 4.57.6 to 5.24.0)."""

INPUTS = {"Florence2VisionBackbone": {"hidden_states": "floats(batch, first_channels, height, width)"}}
