"""ALBERT: one layer runs in every place of its stack, so that nothing is repeated among its modules (all releases)."""

BLOCKS = {"AlbertLayer"}
