"""Hooks of sharding open a profiler range in the recompute that they did not open in the forward.

A selective checkpoint finds what it has kept by the number of the call of each operator. To open a range is an
operator, and the policy keeps whatever it does not know.
"""

from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from benchmarks.faults.script import Switched, error, train

FAULT = {
    "source": "https://github.com/NVIDIA-NeMo/Automodel/commit/dfd1401a65f1e73887dcbaa4328f0a6312b1ecb1",
    "kind": "wrapper and sharding",
    "saw": "profiler._record_function_enter_new encountered during backward but not found in storage",
    "right": "operators of the profiler are left out of what is kept",
    "cause": ["record_function", "profiler"],
    "cure": "wrap",
}
MENDED = False


class Sharded:
    """Gathers the weights of a block before it runs; while a prefetch lasts there is nothing to do."""

    def __init__(self, block):
        self.prefetched = True
        self.gathered = 0
        block.register_forward_pre_hook(self.before)

    def before(self, block, inputs):
        if self.prefetched:
            self.prefetched = False
            return
        self.prefetched = True
        with torch.profiler.record_function("FSDP::pre_forward"):
            self.gathered += 1


RECOMPUTED = (torch.ops.aten.gelu.default, torch.ops.aten.native_layer_norm.default)


def policy(ctx, op, *args, **kwargs):
    return CheckpointPolicy.PREFER_RECOMPUTE if op in RECOMPUTED else CheckpointPolicy.PREFER_SAVE


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mixer = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        return x + self.mixer(self.norm(x))


class Model(Switched):
    def __init__(self, width=16):
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.head = nn.Linear(width, 1)
        for block in self.blocks:
            Sharded(block)

    def forward(self, x, y):
        x = self.embed(x)
        contexts = partial(create_selective_checkpoint_contexts, policy)
        for block in self.blocks:
            if self.gradient_checkpointing:
                x = checkpoint(block, x, use_reentrant=False, context_fn=contexts)
            else:
                x = block(x)
        return nn.functional.mse_loss(self.head(x), y)


def make():
    torch.manual_seed(0)
    if MENDED:
        torch.utils.checkpoint.SAC_IGNORED_OPS |= {
            torch.ops.profiler._record_function_enter_new.default,
            torch.ops.profiler._record_function_exit._RecordFunction,
        }
    return Model(), {"x": torch.rand(6, 4), "y": torch.rand(6, 1)}


def symptom():
    return error(lambda: train(make, steps=1))


if __name__ == "__main__":
    train(make)
