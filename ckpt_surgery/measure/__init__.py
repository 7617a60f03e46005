"""Measure what checkpointing does to a training step, and judge it: `step` runs, `compare` decides.

Importing this package does not import torch; importing its modules does.
"""

TIMEOUT = 20.0
"""Seconds that building a tiny model, its reference run and each mode may take, by default: each takes under one."""

TIMEOUT_HELP = f"Seconds to build a model, to run its reference, and to run each mode (default: {TIMEOUT:g})."
"""The help text of every option that sets this limit."""
