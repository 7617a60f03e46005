"""BiT: groups of its norms that divide the tiny widths (4.52 to 5.24.0)."""

TINY = {"bit": {"num_groups": 4}}
