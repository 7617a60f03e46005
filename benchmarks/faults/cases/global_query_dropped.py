"""The checkpointed call of a block leaves out an argument that the direct call passes.

A block of global attention takes its queries from there; without them it splits two thirds of a projection in three.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import error, train

FAULT = {
    "source": "https://github.com/huggingface/pytorch-image-models/commit/b6692ed5e7c6d944d782765d556ae620d68a19db",
    "kind": "arguments lost",
    "saw": "GCViT fails as soon as set_grad_checkpointing() was called",
    "right": "both calls pass the same arguments",
    "cause": ["CKPT002", "global_query", "argument"],
    "cure": "wrap",
}
MENDED = False


class WindowAttention(nn.Module):
    def __init__(self, dim, use_global):
        super().__init__()
        self.use_global = use_global
        self.qkv = nn.Linear(dim, dim * (2 if use_global else 3))
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, global_query=None):
        if self.use_global and global_query is not None:
            q, (k, v) = global_query.expand_as(x), self.qkv(x).chunk(2, -1)
        else:
            q, k, v = self.qkv(x).unflatten(-1, (3, -1)).unbind(2)
        return self.proj((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)


class GlobalContextVitBlock(nn.Module):
    def __init__(self, dim, use_global):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, use_global)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x, global_query=None):
        x = x + self.attn(self.norm(x), global_query)
        return x + self.mlp(x)


class GlobalContextVit(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.stem = nn.Conv2d(3, dim, 4, 4)
        self.global_block = nn.Linear(dim, dim)
        self.blocks = nn.ModuleList(GlobalContextVitBlock(dim, use_global=i % 2 == 1) for i in range(4))
        self.head = nn.Linear(dim, 10)
        self.grad_checkpointing = False

    def set_grad_checkpointing(self, enable=True):
        self.grad_checkpointing = enable

    def forward(self, x):
        x = self.stem(x).flatten(2).mT
        global_query = self.global_block(x.mean(1, keepdim=True))
        for blk in self.blocks:
            if self.grad_checkpointing and not torch.jit.is_scripting():
                x = (
                    checkpoint(blk, x, global_query, use_reentrant=False)
                    if MENDED
                    else checkpoint(blk, x, use_reentrant=False)
                )
            else:
                x = blk(x, global_query)
        return self.head(x.mean(1))


def make():
    torch.manual_seed(0)
    model = GlobalContextVit()
    model.set_grad_checkpointing()
    return model, {"x": torch.rand(2, 3, 16, 16)}


def off(model):
    model.set_grad_checkpointing(False)


MODES = ("non_reentrant",)


def symptom():
    return error(lambda: train(make, steps=1))


if __name__ == "__main__":
    train(make)
