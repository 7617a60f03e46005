"""What `wrap_blocks` does to a model, says in a table, and takes back."""
