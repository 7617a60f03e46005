"""Each block appends to its memory of earlier windows, and appends once more when it is recomputed."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.cases.toys import Stack, fit

FAULT = {"says": ["memory"], "never": ["2 of 2 blocks proved", "--wrap"]}
DOORS = {"run": FAULT, "watch": FAULT}


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(16, 16)
        self.memory = []

    def forward(self, x):
        x = x + torch.tanh(self.mix(x))
        self.memory.append(x.detach().mean(1, keepdim=True))
        return x + sum(self.memory)


def call(block, x):
    return checkpoint(block, x, use_reentrant=True)


def windows():
    for block in model.blocks:
        block.memory = []
    return sum(model(window).square().mean() for window in torch.randn(3, 2, 8, 4))


model = Stack(Remembering, call, depth=2)
fit(model, windows)
