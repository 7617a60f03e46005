"""`wrap_blocks`: apply a surgery to a model, say in a table what it is, and take it back."""
