"""Training scripts as people write them, under an allocator limit, which `test_fit` runs with and without `fit`."""
