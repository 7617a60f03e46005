"""Tools for the other rooms and other parts of the package: tensors, containers, generators, classes, undo."""
