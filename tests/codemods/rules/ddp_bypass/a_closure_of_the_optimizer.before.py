# CKPT101 unsafe | ddp.module(batch)
# file: train.py
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, batch, optimizer):
    ddp = DDP(model)

    def closure():
        loss = ddp.module(batch).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
