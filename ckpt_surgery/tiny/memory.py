"""Weights that a class forgets to initialise: they hold what the memory held before, and no two runs agree on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import deterministic


@contextmanager
def marked_memory() -> Iterator[None]:
    """Inside, tensors that are made without values hold NaN."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    settings: Any = deterministic
    fills = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    settings.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        settings.fill_uninitialized_memory = fills


def draw_marked(model: Any, scale: float = 0.02) -> None:
    """Draw the weights that are NaN from a normal distribution of this deviation."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.is_floating_point() and bool(weight.isnan().any()):
                weight.copy_(torch.where(weight.isnan(), torch.randn_like(weight) * scale, weight))
