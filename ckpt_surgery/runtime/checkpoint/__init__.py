"""One block call, and its recompute in the backward."""
