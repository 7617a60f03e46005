# file: train.py
import torch
import torch.distributed as dist


def log(loss, rank):
    dist.all_reduce(loss)
    if rank == 0:
        print(loss)
    dist.barrier()
