"""A hook in front of a sharded module casts its inputs, but not in the recompute: that one takes it for a backward.

The hook returns early once the module's state says that its backward has begun, which it has, as the recompute runs.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, error, train

FAULT = {
    "source": "https://github.com/pytorch/pytorch/issues/148831",
    "kind": "precision",
    "saw": "CheckpointError: recomputed values have different metadata, bfloat16 in the forward and float32 after",
    "right": "the hook casts the inputs of a recompute as well",
    "cause": ["dtype", "bfloat16", "cast"],
    "cure": "",
}
MENDED = False


class Sharded(nn.Module):
    """A module that computes in bfloat16, and reads from its state where in the step it is."""

    def __init__(self, module):
        super().__init__()
        self.inner, self.state = module.bfloat16(), "IDLE"
        self.inner.register_forward_pre_hook(self.pre_forward)
        self.inner.register_forward_hook(self.post_forward)

    def pre_forward(self, module, args):
        if self.state == "PRE_BACKWARD":
            return tuple(a.bfloat16() for a in args) if MENDED else args
        self.state = "FORWARD"
        return tuple(a.bfloat16() for a in args)

    def post_forward(self, module, args, output):
        if self.state == "FORWARD" and output.requires_grad:
            output.register_hook(self.pre_backward)
        return output

    def pre_backward(self, grad):
        self.state = "PRE_BACKWARD"

    def forward(self, x):
        return self.inner(x)


class FeedForward(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x * self.scale)))


class Block(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = Sharded(FeedForward(width))

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x + self.mlp(self.norm(x)).float()


class Model(Switched):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(8, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for module in self.modules():
            if isinstance(module, Sharded):
                module.state = "IDLE"
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.gradient_checkpointing else block(x)
        return x


def make():
    torch.manual_seed(0)
    return Model(), {"x": torch.randn(4, 6, 8)}


def symptom():
    return error(lambda: train(make, steps=2))


if __name__ == "__main__":
    train(make)
