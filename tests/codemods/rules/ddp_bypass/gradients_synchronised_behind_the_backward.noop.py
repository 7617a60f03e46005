# file: train.py
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from ckpt_surgery import sync_gradients


def train(model, loader, optimizer):
    ddp = DDP(model)
    for batch in loader:
        loss = ddp.module.compute_loss(batch)
        loss.backward()
        sync_gradients(ddp)
        optimizer.step()
