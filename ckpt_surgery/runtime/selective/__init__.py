"""What `save` keeps of a block, so that its recompute does not run that again."""
