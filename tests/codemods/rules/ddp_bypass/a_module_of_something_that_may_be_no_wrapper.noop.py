# CKPT101 unknown | model.module(batch) | this file does not show
# file: train.py
import torch.distributed as dist


def train_epoch(model, loader):
    for batch in loader:
        loss = model.module(batch).loss
        loss.backward()
