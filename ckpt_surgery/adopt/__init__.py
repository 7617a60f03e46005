"""`adopt`: one folder with a model and code of its own, from its findings to a repair that is proved."""
