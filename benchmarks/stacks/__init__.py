"""`wrap_blocks` on models of other libraries: `python -m benchmarks.stacks`."""
