"""Tools shared by the other rooms of the package: tensors, containers, generators, classes, refusals."""
