# CKPT104 safe | use_reentrant=True | DDP on line 7
# file: train.py
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


def train(model, batch):
    ddp = DDP(model)
    hidden = checkpoint(model.block, batch, use_reentrant=True)
    hidden.sum().backward()
