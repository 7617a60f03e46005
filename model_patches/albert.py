"""ALBERT: one layer runs at every position of its stack, so that no module is repeated (all releases)."""

BLOCKS = {"AlbertLayer"}
