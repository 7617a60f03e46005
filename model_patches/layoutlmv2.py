"""LayoutLMv2 and v3: four corners and two sizes of a box share the width (transformers 4.52 to 5.24.0)."""

_CORNERS = {"coordinate_size": 8, "shape_size": 16}
TINY = {("layoutlmv2", "layoutlmv3"): _CORNERS}
