"""Layers whose weights are split over two ranks."""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from benchmarks.cases.toys import Block, Stack, fit, squares
from ckpt_surgery import wrap_blocks

RANKS = 2
DOORS = {"plain": {"says": ["equal"]}}


def losses(wrap):
    torch.manual_seed(0)
    model = Stack(Block, depth=2)
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if wrap:
        wrap_blocks(model)
    return fit(model, squares(model), quiet=True)


dist.init_process_group("gloo")
mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
assert losses(True) == losses(False)
print("equal")
sys.stdout.flush()
os._exit(0)  # gloo may abort in its own tear-down
