"""Faults of activation checkpointing that people had, each with its mended twin, and who finds them."""
