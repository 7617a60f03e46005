"""Two checkpoints share a projection under autocast: the second finds its cast in the cache, its recompute does not.

Autocast casts a weight once in its region. The first layer has done it when the second runs; the recompute has a
region of its own, casts again, and a selective checkpoint meets an operation that its forward did not have.
"""

import functools

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from benchmarks.faults.script import cured, error, loss_of, train

FAULT = {
    "source": "https://github.com/pytorch/pytorch/issues/193338",
    "kind": "precision",
    "saw": "RuntimeError: aten._to_copy.default encountered during backward but not found in storage",
    "right": "autocast does not cache casts of weights that several checkpoints share",
    "cause": ["autocast", "cache_enabled"],
    "cure": "",
    "held_out": True,
}
MENDED = False


def save_products(ctx, op, *args, **kwargs):
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)
    return CheckpointPolicy.MUST_SAVE if op in products else CheckpointPolicy.PREFER_RECOMPUTE


class Block(nn.Module):
    def __init__(self, dim, shared):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.shared = shared
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.shared(self.norm(x))))


class Model(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.embed = nn.Embedding(32, dim)
        shared = nn.Linear(dim, 2 * dim)
        self.blocks = nn.ModuleList(Block(dim, shared) for _ in range(3))
        self.head = nn.Linear(dim, 32)
        self.checkpointing = True

    def forward(self, ids):
        contexts = functools.partial(create_selective_checkpoint_contexts, save_products)
        region = torch.autocast("cpu", torch.bfloat16)
        if MENDED:
            region = torch.autocast("cpu", torch.bfloat16, cache_enabled=False)
        with region:
            x = self.embed(ids)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False, context_fn=contexts) if self.checkpointing else block(x)
            logits = self.head(x)
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), ids.flatten())


def off(model):
    model.checkpointing = False


def switch(model, mode):
    model.checkpointing = mode is not None


def make():
    torch.manual_seed(0)
    return Model(), {"ids": torch.arange(24).reshape(2, 12)}


def step():
    model, batch = make()
    cured(model)
    loss_of(model(**batch)).backward()


def symptom():
    return error(step)


if __name__ == "__main__":
    train(make)
