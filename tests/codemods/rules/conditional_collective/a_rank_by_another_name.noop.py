# CKPT102 unsafe | dist.reduce(loss, 0) | `chief`
# CKPT102 unsafe | dist.all_reduce(loss) | `worker`
# file: train.py
import torch
import torch.distributed as dist
import os

me = int(os.environ["RANK"])
chief = me == 0
worker = not (me == 0)


def log(loss):
    if chief:
        dist.reduce(loss, 0)
    else:
        print("waiting")
    if worker:
        dist.all_reduce(loss)
