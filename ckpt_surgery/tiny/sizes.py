"""The sizes that a tiny model has, and what the rules for one configuration need to know beside a field's value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ATTEMPTS = 4
"""How often `tiny_model` tries. 0 and 1: one width everywhere; 1 also keeps image, window and kernel sizes. 2: widths
keep their proportions. 3: only layers, experts, vocabulary and positions shrink."""

VOCABULARY = 128
WIDTH = 64
HEADS = 4
HEAD_DIM = 16
"""The rotary part of a head can still be halved twice, for rows and columns."""
LAYERS = 2
PATCH = 8
GRID = 4
"""Patches along each side of an image: a two-by-two merger still leaves more than one."""
POSITIONS = 128
MELS = 32


@dataclass(frozen=True)
class ShrinkContext:
    """What the rules for one configuration read: its fields, the attempt, and the layers that stay.

    `values` are the original fields. `old_layers` is the original number of layers, 0 if they come in stages;
    `kept_layers` are the indices of those that stay. `tokens` maps special token ids beyond the tiny vocabulary to
    new ones. `rope` holds rotary parameters that the model assumes if the configuration leaves them out.
    """

    values: Mapping[str, Any]
    attempt: int
    old_layers: int
    kept_layers: tuple[int, ...]
    tokens: Mapping[int, int]
    rope: Mapping[str, Any]

    @property
    def layers(self) -> int:
        """How many layers the tiny model has."""
        return len(self.kept_layers)
