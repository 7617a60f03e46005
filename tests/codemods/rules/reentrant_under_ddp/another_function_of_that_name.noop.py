# file: train.py
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from mine import checkpoint


def train(model, batch):
    ddp = DDP(model)
    checkpoint(model, "model.pt")
    ddp(batch).sum().backward()
