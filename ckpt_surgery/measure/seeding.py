"""How to seed every random number generator that a step may draw from."""

from __future__ import annotations

import random
import sys

import torch


def seed_all(seed: int) -> None:
    """Seed torch on every device, Python, and NumPy where somebody has imported it."""
    torch.manual_seed(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
