"""One call of a block, and its recompute in the backward."""
