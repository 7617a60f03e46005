"""What watches gradient checkpointing inside the user's own training: `guard`."""
