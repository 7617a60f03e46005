"""Whether a recompute made what its forward made, and when that is looked at."""
