"""The backward of a tiled MLP calls `backward` for each tile: DDP sees each weight ready as often as there are tiles.

Every call reaches the accumulator of the weights, and with it the hook by which DDP counts them.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.faults.script import cured, error, loss_of, train

FAULT = {
    "source": "https://github.com/huggingface/kernels-community/pull/1083",
    "kind": "wrapper and sharding",
    "saw": "RuntimeError: Expected to mark a variable ready only once, in models with two tiled MLPs",
    "right": "weights are inputs of the function, and their gradients are summed and returned once",
    "cause": ["each tile", "per tile", "each shard", "accumulates"],
    "cure": "",
    "ranks": 2,
    "held_out": True,
}
MENDED = False


class Tiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, mlp, tiles, x, *weights):
        ctx.mlp, ctx.tiles = mlp, tiles
        ctx.save_for_backward(x, *weights)
        with torch.no_grad():
            return torch.cat([mlp.compute(part) for part in x.chunk(tiles, 1)], 1)

    @staticmethod
    def backward(ctx, upstream):
        x, *weights = ctx.saved_tensors
        ofx, totals = [], [torch.zeros_like(weight) for weight in weights]
        for part, gradient in zip(x.chunk(ctx.tiles, 1), upstream.chunk(ctx.tiles, 1), strict=True):
            part = part.detach().requires_grad_()
            with torch.enable_grad():
                output = ctx.mlp.compute(part)
            if MENDED:
                first, *others = torch.autograd.grad(output, [part, *weights], gradient)
                totals = [total + other for total, other in zip(totals, others, strict=True)]
                ofx.append(first)
            else:
                torch.autograd.backward(output, gradient)
                ofx.append(part.grad)
        return None, None, torch.cat(ofx, 1), *(totals if MENDED else [None] * len(weights))


class MLP(nn.Module):
    def __init__(self, dim, tiles):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(dim, 2 * dim, bias=False), nn.Linear(dim, 2 * dim, bias=False)
        self.down_proj = nn.Linear(2 * dim, dim, bias=False)
        self.tiles = tiles

    def compute(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))

    def forward(self, x):
        if not self.tiles:
            return self.compute(x)
        weights = (self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight)
        return Tiled.apply(self, self.tiles, x, *(weights if MENDED else ()))


class Model(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.embed = nn.Embedding(32, dim)
        self.mlps = nn.ModuleList(MLP(dim, 4) for _ in range(2))
        self.lm_head = nn.Linear(dim, 32)

    def forward(self, ids):
        x = self.embed(ids)
        for mlp in self.mlps:
            x = x + mlp(x)
        return nn.functional.cross_entropy(self.lm_head(x[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def off(model):
    switch(model, None)


def switch(model, mode):
    for mlp in model.modules():
        if isinstance(mlp, MLP):
            mlp.tiles = None if mode is None else 4


def make():
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Model())
    torch.manual_seed(1 + dist.get_rank())
    return model, {"ids": torch.randint(32, (2, 16))}


def step():
    model, batch = make()
    cured(model)
    loss_of(model(**batch)).backward()


def symptom():
    return error(step)


if __name__ == "__main__":
    train(make)
    dist.destroy_process_group()
