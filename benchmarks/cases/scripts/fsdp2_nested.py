"""FSDP2 units inside a layer that is checkpointed."""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from benchmarks.cases.toys import Block, Stack, fit, squares
from ckpt_surgery import wrap_blocks

RANKS = 2
DOORS = {"plain": {"says": ["equal"]}}


def losses(wrap, *, before):
    torch.manual_seed(0)
    model = Stack(Block, depth=2)
    if wrap and before:
        wrap_blocks(model)
    for block in model.blocks:
        fully_shard(block.up, mesh=mesh)
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if wrap and not before:
        wrap_blocks(model)
    return fit(model, squares(model), seed=10 * dist.get_rank(), quiet=True)


dist.init_process_group("gloo")
mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
plain = losses(False, before=False)
assert losses(True, before=False) == plain
assert losses(True, before=True) == plain
print("equal")
sys.stdout.flush()
os._exit(0)  # gloo may abort in its own tear-down
