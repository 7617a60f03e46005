"""NeoMME: flat patches of a page, four for each text (transformers 5.23.0 to 5.24.0)."""

INPUTS = {"neomme": {"pixel_values": "floats(4 * batch, patch_dim)"}}
