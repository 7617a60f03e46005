# CKPT101 unsafe | ddp.module(batch)
# file: train.py
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, loader):
    ddp = DDP(model)
    for batch in loader:
        with torch.no_grad():
            target = ddp(batch)
        loss = (ddp.module(batch) - target).pow(2).mean()
        loss.backward()
