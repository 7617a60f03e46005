"""The blocks of a model: find and choose them, and read the state of their library's checkpointing."""
