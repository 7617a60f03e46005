"""LiLT: six coordinates of a box share the width (transformers 4.52 to 5.24.0)."""

TINY = {"lilt": {"hidden_size": 96, "intermediate_size": 96}}
