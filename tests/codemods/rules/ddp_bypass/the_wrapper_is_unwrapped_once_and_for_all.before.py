# CKPT101 unsafe | model(batch)
# file: train.py
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def main(model, loader, accelerator, optimizer):
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    model = model.module if isinstance(model, DDP) else model
    model.train()
    for batch in loader:
        down, middle = model(batch)
        loss = (down - middle).pow(2).mean()
        accelerator.backward(loss)
