"""CvT: the third stage reads its drop path at index 2 (4.52 to 5.24.0)."""

TINY = {
    "cvt": {"depth": (1, 2, 3)}  # the third stage reads its drop path at index 2
}
