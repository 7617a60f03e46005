"""ColQwen2: flat patches in one row for each image (4.57.6 to 5.24.0)."""

INPUTS = {"colqwen2": {"pixel_values": "shaped(batch, -1, channels * temporal_patch_size * patch_size * patch_size)"}}
