"""A checkpoint function of the script's own does not put generators back: dropout is drawn again."""

import torch
from torch import nn

from benchmarks.cases.toys import Block, Stack, fit, squares

FAULT = {"says": ["drew others"], "never": ["not yet"]}
DOORS = {"run": {"says": ["drew others", "own_function_redraws.py:23"]}, "watch": FAULT}


class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, x):
        ctx.block, ctx.x = block, x.detach()
        with torch.no_grad():
            return block(x)

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            x = ctx.x.requires_grad_()
            torch.autograd.backward(ctx.block(x), gradient)
        return None, x.grad


class Dropping(Block):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        return self.drop(super().forward(x))


model = Stack(Dropping, Recompute.apply)
fit(model, squares(model))
