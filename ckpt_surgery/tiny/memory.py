"""Weights that a class leaves to a checkpoint: they hold what the memory held before, and no two runs agree on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils import deterministic

_DEVIATION = 0.02


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


def draw_marked(model: nn.Module) -> None:
    """Draw the weights that are NaN; those of one dimension become 1, or 0 if they are a bias."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.is_meta or not weight.is_floating_point() or not bool(weight.isnan().any()):
                continue
            if weight.ndim > 1:
                weight.copy_(torch.where(weight.isnan(), torch.randn_like(weight) * _DEVIATION, weight))
            else:
                weight.fill_(0.0 if name.endswith("bias") else 1.0)
