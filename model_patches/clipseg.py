"""CLIPSeg: the decoder reads layers of the encoder by index (transformers 4.52 to 5.24.0)."""

TINY = {"clipseg": {"extract_layers": [0, 1]}}
