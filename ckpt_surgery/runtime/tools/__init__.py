"""What the other rooms and other parts of the package use: tensors, containers, generators, classes, hooks."""
