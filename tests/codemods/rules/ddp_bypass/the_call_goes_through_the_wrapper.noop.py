# file: train.py
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from ckpt_surgery import call_through_ddp


def train(model, loader):
    ddp = DDP(model)
    for batch in loader:
        loss = call_through_ddp(ddp, "compute_loss", batch)
        loss.backward()
