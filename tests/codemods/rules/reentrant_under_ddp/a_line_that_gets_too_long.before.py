# CKPT104 safe | checkpoint(model.some_long_block
# file: train.py
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


def train(model, batch, attention_mask, position_embeddings):
    ddp = DDP(model)
    hidden = checkpoint(model.some_long_block, batch, attention_mask, position_embeddings, model.gradient_scale)
    hidden.sum().backward()
