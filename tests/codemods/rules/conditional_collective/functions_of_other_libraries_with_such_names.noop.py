# file: train.py
import torch
import torch.distributed as dist
import functools

from mine import gather


def combine(values, rank):
    if rank == 0:
        total = functools.reduce(max, values)
        values.scatter(0, total)
        return gather(values)
