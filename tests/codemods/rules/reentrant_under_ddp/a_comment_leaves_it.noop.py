# file: train.py
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


def train(model, batch):
    ddp = DDP(model)
    # ckpt: ignore[CKPT104] the kernel cannot be recomputed otherwise
    checkpoint(model.block, batch, use_reentrant=True).sum().backward()
