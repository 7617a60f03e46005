"""The list of what selective checkpointing saves names a collective by the namespace that it had before.

The policy compares operations; the one that runs is `_c10d_functional`'s, which is on no list, so that the recompute
communicates once more in every layer.
"""

import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as collectives
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from benchmarks.faults.script import cured, loss_of, number, train

FAULT = {
    "source": "https://github.com/pytorch/torchtitan/commit/7419d713838a999408805e55a6d85f450a30bc73",
    "kind": "never checkpointed",
    "saw": "collectives of the forward run again in the backward though the policy saves them",
    "right": "the policy names the operation that is dispatched",
    "cause": ["reduce_scatter", "c10d_functional", "collective"],
    "cure": "",
    "ranks": 2,
    "held_out": True,
}
MENDED = False
if MENDED:
    SAVED = {torch.ops.aten.mm.default, torch.ops._c10d_functional.reduce_scatter_tensor.default}
else:
    SAVED = {torch.ops.aten.mm.default, torch.ops.c10d_functional.reduce_scatter_tensor.default}


def policy(ctx, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op in SAVED else CheckpointPolicy.PREFER_RECOMPUTE


class ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return collectives.wait_tensor(collectives.reduce_scatter_tensor(x, "sum", 0, dist.group.WORLD))

    @staticmethod
    def backward(ctx, gradient):
        return collectives.wait_tensor(collectives.all_gather_tensor(gradient.contiguous(), 0, dist.group.WORLD))


class AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return collectives.wait_tensor(collectives.all_gather_tensor(x.contiguous(), 0, dist.group.WORLD))

    @staticmethod
    def backward(ctx, gradient):
        return collectives.wait_tensor(collectives.reduce_scatter_tensor(gradient, "sum", 0, dist.group.WORLD))


class ParallelFeedForward(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim, elementwise_affine=False)
        self.w1, self.w2 = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        return x + torch.tanh(ReduceScatter.apply(self.w2(nn.functional.silu(self.w1(AllGather.apply(self.norm(x)))))))


class Model(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.layers = nn.ModuleList(ParallelFeedForward(dim) for _ in range(3))
        self.checkpointed = True

    def forward(self, x):
        contexts = functools.partial(create_selective_checkpoint_contexts, policy)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False, context_fn=contexts) if self.checkpointed else layer(x)
        return x.square().mean()


class Count(TorchDispatchMode):
    scatters = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.scatters += func is torch.ops._c10d_functional.reduce_scatter_tensor.default
        return func(*args, **(kwargs or {}))


def off(model):
    model.checkpointed = False


def switch(model, mode):
    model.checkpointed = mode is not None


def make():
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    return Model(), {"x": torch.randn(6, 16)}


def scatters(prepare):
    model, batch = make()
    prepare(model)
    with Count() as count:
        loss_of(model(**batch)).backward()
    return count.scatters


def symptom():
    return number("reduce_scatters of a step", scatters(cured), scatters(off))


if __name__ == "__main__":
    train(make)
    dist.destroy_process_group()
