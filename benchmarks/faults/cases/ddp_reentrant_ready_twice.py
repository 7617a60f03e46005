"""Reentrant checkpoints under DDP, which looks for unused parameters, mark a parameter as ready twice.

DDP has marked all that the outer graph does not reach before the backward; the checkpoints' backward reaches it then.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils import checkpoint

from benchmarks.faults.script import cured, error, loss_of, train

FAULT = {
    "source": "https://github.com/microsoft/FocalNet/issues/4",
    "kind": "wrapper and sharding",
    "saw": "RuntimeError: Expected to mark a variable ready only once; it trains on one device",
    "right": "checkpointing is not reentrant",
    "cause": ["reentrant", "find_unused_parameters"],
    "cure": "wrap",
    "ranks": 2,
    "held_out": True,
}
MENDED = False


class FocalModulation(nn.Module):
    def __init__(self, dim, levels=2):
        super().__init__()
        self.f = nn.Linear(dim, 2 * dim + levels + 1)
        self.focal = nn.ModuleList(nn.Conv2d(dim, dim, 3 + 2 * n, padding=1 + n, groups=dim) for n in range(levels))
        self.h = nn.Conv2d(dim, dim, 1)
        self.dim = dim

    def forward(self, x):
        q, context, gates = self.f(x).permute(0, 3, 1, 2).split([self.dim, self.dim, len(self.focal) + 1], 1)
        total = 0
        for level, conv in enumerate(self.focal):
            context = nn.functional.gelu(conv(context))
            total = total + context * gates[:, level : level + 1]
        total = total + context.mean((2, 3), keepdim=True) * gates[:, -1:]
        return (q * self.h(total)).permute(0, 2, 3, 1)


class BasicLayer(nn.Module):
    def __init__(self, dim, depth, use_checkpoint):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(dim), FocalModulation(dim)) for _ in range(depth))
        self.use_checkpoint = use_checkpoint

    def forward(self, x):
        for block in self.blocks:
            if self.use_checkpoint:
                if MENDED:
                    x = x + checkpoint.checkpoint(block, x, use_reentrant=False)
                else:
                    x = x + checkpoint.checkpoint(block, x, use_reentrant=True)
            else:
                x = x + block(x)
        return x


class FocalNet(nn.Module):
    def __init__(self, dim=8, use_checkpoint=True):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, dim, 2, 2)
        self.layers = nn.ModuleList(BasicLayer(dim, 2, use_checkpoint) for _ in range(2))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 4)

    def forward(self, images, labels):
        x = self.patch_embed(images).permute(0, 2, 3, 1)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.head(self.norm(x).mean((1, 2))), labels)


def off(model):
    switch(model, None)


def switch(model, mode):
    for layer in model.modules():
        if isinstance(layer, BasicLayer):
            layer.use_checkpoint = mode is not None


def make():
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(FocalNet(), find_unused_parameters=True)
    torch.manual_seed(1 + dist.get_rank())
    return model, {"images": torch.randn(4, 3, 8, 8), "labels": torch.arange(4)}


def step():
    model, batch = make()
    cured(model)
    loss_of(model(**batch)).backward()


def symptom():
    return error(step)


if __name__ == "__main__":
    train(make)
    dist.destroy_process_group()
