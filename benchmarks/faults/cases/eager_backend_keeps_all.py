"""Under torch.compile with the backend `eager` nothing is recomputed.

Dynamo makes an operator of each checkpoint; only AOTAutograd knows what to do with it, and `eager` runs its body.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, memory, train

FAULT = {
    "source": "https://github.com/pytorch/pytorch/issues/160773",
    "kind": "compile",
    "saw": "with torch.compile(backend='eager') memory is that of a model without checkpointing",
    "right": "what checkpoints keep are their inputs",
    "cause": ["eager", "torch.compile", "compiled"],
}
MENDED = False


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.sin(torch.cos(self.up(x)).exp()))


class Model(Switched):
    def __init__(self, width=16):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return x.square().mean()


def make():
    torch.manual_seed(0)
    model = Model()
    model.compile(backend="aot_eager" if MENDED else "eager")
    return model, {"x": torch.rand(8, 16)}


def symptom():
    return memory(make)


if __name__ == "__main__":
    train(make)
