"""A checkpoint function remembers that autocast was on, and not in which dtype: the recompute runs in another.

The backward runs outside of the context, where autocast has its default dtype.
"""

import torch
from torch import nn

from benchmarks.faults.script import Switched, gradients, train

FAULT = {
    "source": "https://github.com/pytorch/pytorch/issues/71124",
    "kind": "precision",
    "saw": "a forward in one half precision, and a recompute in the other",
    "right": "the dtype of the forward is given to the context of the recompute",
    "cause": ["another dtype", "other dtype", "dtype of autocast", "autocast is not restored"],
    "cure": "wrap",
}
MENDED = False


class CheckpointFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, x):
        ctx.run = run
        ctx.had_autocast = torch.is_autocast_enabled("cpu")
        ctx.dtype = torch.get_autocast_dtype("cpu")
        ctx.save_for_backward(x)
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        dtype = ctx.dtype if MENDED else None
        with torch.enable_grad(), torch.autocast("cpu", dtype=dtype, enabled=ctx.had_autocast):
            y = ctx.run(x)
        torch.autograd.backward(y, gradient)
        return None, x.grad


class Mixer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.tokens = nn.Linear(8, 8)
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.tokens(self.norm(x).mT).mT
        return x + self.channels(x)


class Model(Switched):
    use_reentrant = True

    def __init__(self, width=16):
        super().__init__()
        self.stem = nn.Linear(4, width)
        self.mixers = nn.ModuleList(Mixer(width) for _ in range(3))
        self.head = nn.Linear(width, 1)

    def forward(self, x, y):
        with torch.autocast("cpu", dtype=torch.float16):
            x = self.stem(x).float()
            for mixer in self.mixers:
                x = CheckpointFunction.apply(mixer, x) if self.gradient_checkpointing else mixer(x)
            return nn.functional.mse_loss(self.head(x).float().mean(1), y)


def make():
    torch.manual_seed(0)
    return Model(), {"x": torch.rand(2, 8, 4), "y": torch.rand(2, 1)}


def symptom():
    return gradients(make)


if __name__ == "__main__":
    train(make)
