"""Training scripts as people write them, under an allocator limit: what `test_fit` runs with `fit` and without."""
