"""The command `adopt`: find the faults of a model folder with its own code, and prove their repair."""
