"""The option `save`: results of a block that are kept, so that its recompute does not make them again."""
