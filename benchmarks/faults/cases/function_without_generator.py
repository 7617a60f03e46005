"""A checkpoint function of one's own computes the block again with another dropout mask.

It keeps the inputs, and not the state of the random numbers.
"""

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.faults.script import gradients, train

FAULT = {
    "source": "https://github.com/openai/guided-diffusion/issues/167",
    "kind": "random numbers",
    "saw": "the loss diverges with dropout where use_checkpoint is on",
    "right": "the state of the random numbers is kept, and set again for the recompute",
    "cause": ["random", "dropout", "rng"],
    "cure": "wrap",
}
MENDED = False


class CheckpointFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run_function, length, *args):
        ctx.run_function, ctx.inputs, ctx.params = run_function, args[:length], args[length:]
        if MENDED:
            ctx.random = torch.get_rng_state()
        with torch.no_grad():
            return run_function(*ctx.inputs)

    @staticmethod
    def backward(ctx, grad):
        inputs = [tensor.detach().requires_grad_(True) for tensor in ctx.inputs]
        with torch.enable_grad(), torch.random.fork_rng():
            if MENDED:
                torch.set_rng_state(ctx.random)
            output = ctx.run_function(*(tensor.view_as(tensor) for tensor in inputs))
        grads = torch.autograd.grad(output, [*inputs, *ctx.params], grad, allow_unused=True)
        return None, None, *grads


def checkpoint(function, inputs, params, flag):
    if flag:
        return CheckpointFunction.apply(function, len(inputs), *inputs, *params)
    return function(*inputs)


class ResBlock(nn.Module):
    def __init__(self, channels, dropout):
        super().__init__()
        self.use_checkpoint = True
        self.norm, self.emb = nn.GroupNorm(2, channels), nn.Linear(4, channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, emb):
        trained = tuple(p for p in self.parameters() if p.requires_grad)
        return checkpoint(self._forward, (x, emb), trained, self.use_checkpoint)

    def _forward(self, x, emb):
        h = self.conv1(F.silu(self.norm(x))) + self.emb(emb)[:, :, None, None]
        return x + self.conv2(self.dropout(F.silu(h)))


class UNet(nn.Module):
    def __init__(self, channels=8, dropout=0.3):
        super().__init__()
        self.time = nn.Linear(1, 4)
        self.stem, self.out = nn.Conv2d(3, channels, 1), nn.Conv2d(channels, 3, 1)
        self.blocks = nn.ModuleList(ResBlock(channels, dropout) for _ in range(3))

    def forward(self, x, t, noise):
        h, emb = self.stem(x), self.time(t)
        for block in self.blocks:
            h = block(h, emb)
        return (self.out(h) - noise).square().mean()


def make():
    torch.manual_seed(0)
    x, noise = torch.randn(2, 2, 3, 8, 8)
    return UNet(), {"x": x, "t": torch.rand(2, 1), "noise": noise}


def off(model):
    switch(model, None)


def switch(model, mode):
    for block in model.blocks:
        block.use_checkpoint = mode is not None


MODES = ["reentrant"]


def symptom():
    return gradients(make, off)


if __name__ == "__main__":
    train(make)
