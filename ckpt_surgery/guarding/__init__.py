"""The guard, which watches gradient checkpointing inside the user's own training."""
