"""Checkpointing is put on modules of certain classes, and the library has moved on to others of that shape.

The loop finds no module, and says nothing.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import memory, train

FAULT = {
    "source": "https://github.com/Nerogar/OneTrainer/commit/3c18a9113dd7eeceaa34adaca780112a31ef6bae",
    "kind": "never checkpointed",
    "saw": "the memory is that of a training without gradient checkpointing",
    "right": "the classes of today's library are looked for",
    "cause": ["nothing is checkpointed", "never checkpointed", "no block", "checkpoints nothing", "not checkpointed"],
    "cure": "wrap",
}
MENDED = False


class ResBlock(nn.Module):
    """The library's old block, which is still there for those who import it."""

    def __init__(self, c):
        super().__init__()
        self.conv = nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return x + self.conv(x)


class SDCascadeResBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.depthwise = nn.Conv2d(c, c, 3, padding=1, groups=c)
        self.norm = nn.GroupNorm(2, c)
        self.channelwise = nn.Sequential(nn.Conv2d(c, 4 * c, 1), nn.GELU(), nn.Conv2d(4 * c, c, 1))

    def forward(self, x):
        return x + self.channelwise(self.norm(self.depthwise(x)))


class SDCascadeTimestepBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.mapper = nn.Linear(1, 2 * c)

    def forward(self, x, t):
        scale, shift = self.mapper(t)[:, :, None, None].chunk(2, 1)
        return x * (1 + scale) + shift


class StableCascadeUNet(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.embedding = nn.Conv2d(4, c, 1)
        self.down_blocks = nn.ModuleList(
            block for _ in range(3) for block in (SDCascadeResBlock(c), SDCascadeTimestepBlock(c))
        )
        self.clf = nn.Conv2d(c, 4, 1)

    def forward(self, sample, timestep, noise):
        x = self.embedding(sample)
        for block in self.down_blocks:
            x = block(x, timestep) if isinstance(block, SDCascadeTimestepBlock) else block(x)
        return (self.clf(x) - noise).square().mean()


def checkpointed(forward):
    def run(*args):
        return checkpoint(forward, *args, use_reentrant=False) if torch.is_grad_enabled() else forward(*args)

    return run


def enable_checkpointing(unet):
    wanted = (SDCascadeResBlock, SDCascadeTimestepBlock) if MENDED else (ResBlock,)
    for child in unet.modules():
        if isinstance(child, wanted):
            child.forward = checkpointed(child.forward)


def make():
    torch.manual_seed(0)
    unet = StableCascadeUNet()
    enable_checkpointing(unet)
    sample, noise = torch.randn(2, 2, 4, 12, 12)
    return unet, {"sample": sample, "timestep": torch.rand(2, 1), "noise": noise}


def off(model):
    for child in model.modules():
        vars(child).pop("forward", None)


def switch(model, mode):
    off(model) if mode is None else enable_checkpointing(model)


MODES = ["non_reentrant"]


def symptom():
    return memory(make, off)


if __name__ == "__main__":
    train(make)
