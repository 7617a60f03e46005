"""A frozen UNet is in eval mode while the text encoder trains: it checkpoints nothing.

Its blocks checkpoint in training mode only. The gradients of the text encoder run through it all the same, so that
everything it computes is kept.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import memory, train

FAULT = {
    "source": "https://github.com/victorchall/EveryDream2trainer/pull/246",
    "kind": "mode",
    "saw": "out of memory with checkpointing on, once the UNet is no longer trained",
    "right": "the UNet is in training mode whenever gradients run through it",
    "cause": ["eval", "training mode", "train()"],
    "cure": "wrap",
    "held_out": True,
}
MENDED = False


class CrossAttnBlock(nn.Module):
    def __init__(self, channels, text):
        super().__init__()
        self.norm = nn.GroupNorm(2, channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.to_q, self.to_k = nn.Linear(channels, channels), nn.Linear(text, channels)
        self.to_v, self.to_out = nn.Linear(text, channels), nn.Linear(channels, channels)

    def forward(self, x, context):
        x = x + self.conv1(nn.functional.silu(self.norm(x)))
        q = self.to_q(x.flatten(2).transpose(1, 2))
        weights = (q @ self.to_k(context).transpose(1, 2)).softmax(-1)
        out = self.to_out(weights @ self.to_v(context))
        return x + out.transpose(1, 2).view_as(x)


class UNet(nn.Module):
    def __init__(self, channels=8, text=16):
        super().__init__()
        self.conv_in = nn.Conv2d(4, channels, 3, padding=1)
        self.down_blocks = nn.ModuleList(CrossAttnBlock(channels, text) for _ in range(3))
        self.up_blocks = nn.ModuleList(CrossAttnBlock(channels, text) for _ in range(3))
        self.conv_out = nn.Conv2d(channels, 4, 3, padding=1)
        self.gradient_checkpointing = False

    def forward(self, latents, context):
        x = self.conv_in(latents)
        for block in [*self.down_blocks, *self.up_blocks]:
            if self.training and self.gradient_checkpointing:
                x = checkpoint(block, x, context, use_reentrant=False)
            else:
                x = block(x, context)
        return self.conv_out(x)


class Trained(nn.Module):
    def __init__(self):
        super().__init__()
        self.text_encoder = nn.Sequential(nn.Embedding(32, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
        self.unet = UNet()

    def forward(self, noisy, noise, ids):
        return nn.functional.mse_loss(self.unet(noisy, self.text_encoder(ids)), noise)


def off(model):
    model.unet.gradient_checkpointing = False


def switch(model, mode):
    model.unet.gradient_checkpointing = mode is not None


def make():
    torch.manual_seed(0)
    model = Trained()
    model.unet.gradient_checkpointing = True
    model.unet.requires_grad_(False)
    if MENDED:
        model.unet.train()
    else:
        model.unet.eval()
    noise = torch.randn(2, 4, 16, 16)
    return model, {"noisy": torch.randn(2, 4, 16, 16) + noise, "noise": noise, "ids": torch.arange(10).view(2, 5)}


def symptom():
    return memory(make, off)


if __name__ == "__main__":
    train(make)
