# CKPT102 unsafe | dist.broadcast(value, 0)
# CKPT102 unsafe | dist.all_reduce(value)
# file: train.py
import torch
import torch.distributed as dist


def exchange(value, rank):
    if rank == 0:
        dist.broadcast(value, 0)
    else:
        dist.all_reduce(value)
