"""CvT: each stage reads the drop path rate of the layer with its own index (transformers 4.52 to 5.24.0)."""

TINY = {"cvt": {"depth": (1, 2, 3)}}
