# file: train.py
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


def train(model):
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.gradient_checkpointing_enable(dict(use_reentrant=False))
    model.gradient_checkpointing_enable()
    return DDP(model)
