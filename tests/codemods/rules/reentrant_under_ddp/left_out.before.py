# CKPT104 safe | checkpoint(model.block, batch) | without use_reentrant
# CKPT104 safe | checkpoint(model.block, *rest)
# CKPT104 safe | torch.utils.checkpoint.checkpoint(
# file: train.py
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


def train(model, batch, rest):
    ddp = DDP(model)
    hidden = checkpoint(model.block, batch)
    hidden = checkpoint(model.block, *rest)
    hidden = torch.utils.checkpoint.checkpoint(
        model.block,
        hidden,  # the stream
        preserve_rng_state=False,
    )
    hidden.sum().backward()
