"""`wrap_blocks`: apply a surgery to a model, describe it in a table, and undo it."""
