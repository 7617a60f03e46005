"""Checkpointing in a live model: which of its modules are blocks.

Importing this package does not import torch; importing its modules does.
"""
