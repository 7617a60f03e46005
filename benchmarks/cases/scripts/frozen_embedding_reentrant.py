"""Reentrant checkpointing behind a frozen embedding: the blocks get no gradient."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.cases.toys import Block, fit
from ckpt_surgery import wrap_blocks

FAULT = {"says": ["needs gradient", "enable_input_require_grads", "use_reentrant=False"], "never": ["--wrap"]}
DOORS = {"run": FAULT, "watch": FAULT, "verify": {"exit": 1, "says": ["frozen_embedding_reentrant.py:24"]}}


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, 16).requires_grad_(False)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(16, 2)

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        return self.head(x.mean(1))


def make():
    """The model as `verify` gets it: its blocks are wrapped around the call that loses their gradients."""
    model, batch = built()
    wrap_blocks(model)
    return model, batch


def built():
    torch.manual_seed(0)
    return Encoder(), {"ids": torch.randint(0, 32, (2, 8))}


if __name__ == "__main__":
    model, batch = built()
    fit(model, lambda: model(**batch).square().mean())
