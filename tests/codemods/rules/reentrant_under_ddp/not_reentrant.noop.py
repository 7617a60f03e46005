# file: train.py
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


def train(model, batch, **options):
    ddp = DDP(model)
    hidden = checkpoint(model.block, batch, use_reentrant=False)
    hidden = checkpoint(model.block, hidden, **options)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    hidden.sum().backward()
