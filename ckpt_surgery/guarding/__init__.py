"""The guard, which watches gradient checkpointing in the user's own training."""
