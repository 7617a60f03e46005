"""`adopt`: one folder with a model and its own code, from its findings to a proved repair."""
