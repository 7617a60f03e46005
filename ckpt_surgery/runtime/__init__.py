"""Checkpointing in a live model: find its blocks, wrap them, run them, and restore the model.

Importing this package does not import torch; importing its modules does.
"""
