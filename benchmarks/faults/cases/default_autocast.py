"""The recompute of a checkpoint of one's own runs under the default autocast, the forward under another dtype's.

Its backward opens `torch.autocast` without a dtype: float16 in the forward, bfloat16 in the recompute.
"""

import torch
from torch import nn

from benchmarks.faults.script import gradients, train

FAULT = {
    "source": "https://github.com/facebookresearch/fairscale/issues/1199",
    "kind": "precision",
    "saw": "the recompute runs under autocast to float16 where the forward ran under bfloat16",
    "right": "the dtype of the forward's autocast is kept, and used for the recompute",
    "cause": ["autocast", "dtype", "bfloat16", "precision"],
    "cure": "wrap",
}
MENDED = False


class CheckpointFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, anchor, run_function, *args):
        ctx.run_function = run_function
        ctx.autocast = {"enabled": torch.is_autocast_enabled("cpu")}
        if MENDED:
            ctx.autocast["dtype"] = torch.get_autocast_dtype("cpu")
        ctx.save_for_backward(*args)
        with torch.no_grad():
            return run_function(*args)

    @staticmethod
    def backward(ctx, *grads):
        inputs = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in ctx.saved_tensors]
        with torch.enable_grad(), torch.autocast("cpu", **ctx.autocast):
            output = ctx.run_function(*inputs)
        torch.autograd.backward(output, *grads)
        return (None, None, *(tensor.grad for tensor in inputs))


def checkpoint_wrapper(module):
    """Have a module checkpointed, in place."""
    original = module.forward

    def forward(*args):
        if not torch.is_grad_enabled():
            return original(*args)
        return CheckpointFunction.apply(torch.zeros((), requires_grad=True), original, *args)

    module.forward = forward
    return module


class FeedForward(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.layers = nn.ModuleList(checkpoint_wrapper(FeedForward()) for _ in range(3))
        self.head = nn.Linear(16, 1)

    def forward(self, x, y):
        with torch.autocast("cpu", dtype=torch.float16):
            x = self.embed(x)
            for layer in self.layers:
                x = layer(x)
            return (self.head(x).float() - y).square().mean()


def make():
    torch.manual_seed(0)
    x = torch.randn(4, 6, 8)
    return Model(), {"x": x, "y": x.mean(-1, keepdim=True)}


def off(model):
    for layer in model.layers:
        vars(layer).pop("forward", None)


def switch(model, mode):
    off(model)
    if mode is not None:
        for layer in model.layers:
            checkpoint_wrapper(layer)


MODES = ["reentrant"]


def symptom():
    return gradients(make, off)


if __name__ == "__main__":
    train(make)
