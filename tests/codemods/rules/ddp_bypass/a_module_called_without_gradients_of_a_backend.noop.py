# file: train.py
import torch
from torch.nn.parallel import DistributedDataParallel


def train(model, student, backend, batch):
    teacher = DistributedDataParallel(model)
    with backend().no_grad():
        target = teacher.module(batch)
    loss = (student(batch) - target).pow(2).sum()
    loss.backward()
