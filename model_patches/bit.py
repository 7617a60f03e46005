"""BiT: a number of groups in its norms that divides the tiny widths (transformers 4.52 to 5.24.0)."""

TINY = {"bit": {"num_groups": 4}}
