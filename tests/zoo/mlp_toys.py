"""A stack of MLPs for tests of memory, in plain torch, so that scripts import nothing else."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from tests.zoo.memory_limit import MemoryLimit

WIDTH, ROWS, BLOCKS = 32, 128, 3
PARAMETERS = 4 * (BLOCKS * (2 * WIDTH * 4 * WIDTH + 5 * WIDTH) + WIDTH * WIDTH + WIDTH)
"""Bytes of the parameters of a `Mlps`."""


class Block(nn.Module):
    """A block that adds an MLP to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, rows: Tensor) -> Tensor:
        return rows + cast("Tensor", self.mlp(rows))


class Mlps(nn.Module):
    """Blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, rows: Tensor) -> Tensor:
        for block in self.blocks:
            rows = block(rows)
        return cast("Tensor", self.head(rows))


def peaks_of(model: nn.Module, rows: Tensor, memory: MemoryLimit) -> tuple[int, int]:
    """Return the peak bytes of a forward and of a step; the model is left without gradients."""
    memory.peak_bytes = 0
    loss = model(rows).sum()
    forward = memory.peak_bytes
    torch.autograd.backward(loss)
    model.zero_grad()
    return forward, memory.peak_bytes
