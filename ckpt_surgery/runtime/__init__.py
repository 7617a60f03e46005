"""Checkpointing in a live model: its blocks are found, wrapped, run, and handed back.

Importing this package does not import torch; importing its modules does.
"""
