# file: train.py
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
import copy


def train(model, loader):
    teacher = copy.deepcopy(model)
    model = DDP(model)
    for batch in loader:
        loss = (model(batch) - teacher(batch)).pow(2).mean()
        loss.backward()
