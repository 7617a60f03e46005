# file: train.py
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def measure(model, batch):
    ddp = DDP(model)
    value = ddp.module(batch).loss
    print(value.item())
    other = ddp(batch).loss
    other.backward()
