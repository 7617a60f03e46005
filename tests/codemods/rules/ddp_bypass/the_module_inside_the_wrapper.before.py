# CKPT101 unsafe | ddp.module(batch) | the backward on line 9 synchronises no gradient; call the wrapper, or sync
# file: train.py
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, loader, optimizer):
    ddp = DDP(model)
    for batch in loader:
        loss = ddp.module(batch).loss
        loss.backward()
        optimizer.step()
