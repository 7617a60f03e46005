# CKPT002 unsafe | if self.gradient_checkpointing | `scale`: left out under checkpointing, `scale` otherwise; pass the same in both

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def forward(self, x, emb, scale=None):
        return x + emb if scale is None else x + scale * emb


class UNet(nn.Module):
    def __init__(self):
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.gradient_checkpointing = False

    def forward(self, x, emb, scale):
        for block in self.blocks:
            if self.gradient_checkpointing and torch.is_grad_enabled():
                x = checkpoint(block, x, emb.clone(), use_reentrant=False)
            else:
                x = block(x, emb, scale)
        return x
