"""Measure what checkpointing does to a training step, and judge it: `probe` runs, `compare` decides.

Importing this package does not import torch; importing its modules does.
"""
