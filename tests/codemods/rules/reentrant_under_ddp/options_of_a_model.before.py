# CKPT104 safe | {"use_reentrant": True}
# CKPT104 safe | dict(use_reentrant=True)
# CKPT104 info | model.gradient_checkpointing_enable() | up to transformers 4.57
# file: train.py
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


def train(model):
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    model.gradient_checkpointing_enable(dict(use_reentrant=True))
    model.gradient_checkpointing_enable()
    return DDP(model)
