"""A padded row in every mask of some inputs: with masks of ones, nobody sees that a mask is dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_SHARE = 4
"""One of so many positions of the last row is padding."""


def padded(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same inputs, with the end of the last row masked out in each mask of ones of shape (batch, positions)."""
    return {name: _padded(value) if _is_full_mask(name, value) else value for name, value in values.items()}


def _is_full_mask(name: str, value: Any) -> bool:
    return (
        name.endswith("_mask")
        and isinstance(value, Tensor)
        and value.dim() == 2
        and value.shape[1] >= _SHARE
        and bool((value == 1).all())
    )


def _padded(mask: Tensor) -> Tensor:
    result = mask.clone()
    result[-1, -(mask.shape[1] // _SHARE) :] = torch.zeros((), dtype=mask.dtype)
    return result
