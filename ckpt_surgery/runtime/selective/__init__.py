"""The option `save`: keep results of a block, so that its recompute need not compute them again."""
