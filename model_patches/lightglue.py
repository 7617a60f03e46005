"""LightGlue, SuperGlue and SuperPoint: points of two images are matched (transformers 4.52 to 5.24.0)."""

KEPT = {"superpoint": ("keypoint_decoder_dim",)}
INPUTS = {("lightglue", "superglue"): {"pixel_values": "floats(batch, 2, channels, height, width)"}}
