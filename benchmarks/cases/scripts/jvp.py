"""Forward-mode differentiation through blocks, as MeanFlow takes it."""

import torch

from benchmarks.cases.toys import Block, Stack, fit

DOORS = {"run": {}, "watch": {}, "wrap": {}}

model = Stack(Block)


def loss_of():
    x, direction = torch.randn(2, 2, 8, 4)
    value, derivative = torch.func.jvp(model, (x,), (direction,))
    return (value - derivative.detach()).square().mean()


fit(model, loss_of)
