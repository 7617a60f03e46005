# file: train.py
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, loader):
    parallel = torch.nn.DataParallel(model)
    for batch in loader:
        loss = parallel.module(batch).sum()
        loss.backward()
