# file: train.py
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


def train(model, batch, rest):
    ddp = DDP(model)
    hidden = checkpoint(model.block, batch, use_reentrant=False)
    hidden = checkpoint(model.block, *rest, use_reentrant=False)
    hidden = torch.utils.checkpoint.checkpoint(
        model.block,
        hidden,  # the stream
        preserve_rng_state=False,
        use_reentrant=False,
    )
    hidden.sum().backward()
