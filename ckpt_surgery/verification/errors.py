"""The base of every error that says why a model cannot be verified. Torch-free, so that every process can know it."""

from __future__ import annotations


class Unverifiable(ValueError):
    """There is no verdict on a model. The message is one sentence: what is wrong, where, and what to do."""
