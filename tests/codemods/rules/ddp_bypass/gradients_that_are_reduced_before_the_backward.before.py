# CKPT101 unsafe | ddp.module(batch)
# file: train.py
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, loader, optimizer):
    ddp = DDP(model)
    for batch in loader:
        sync_gradients(ddp)
        loss = ddp.module(batch).sum()
        loss.backward()
        optimizer.step()
