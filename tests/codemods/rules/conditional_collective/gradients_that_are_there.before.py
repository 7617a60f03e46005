# CKPT102 unsafe | dist.all_reduce(p.grad) | use sync_gradients(model)
# file: train.py
import torch
import torch.distributed as dist


def average(model):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
