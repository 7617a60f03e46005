"""Checkpointing stays on when it is switched off: the option is an enum, and the question is whether it is true.

Every member is, `OFF` among them. Each block runs twice in a step.
"""

from enum import Enum

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import cured, loss_of, number, train

FAULT = {
    "source": "https://github.com/Nerogar/OneTrainer/commit/d968558271e500c2e08ea64c29875269d8aa1e26",
    "kind": "mode",
    "saw": "training is as slow with gradient checkpointing OFF as with ON",
    "right": "OFF runs each block once",
    "cause": ["enum", "truthy", "always true"],
    "cure": "",
    "held_out": True,
}
MENDED = False


class GradientCheckpointingMethod(Enum):
    OFF = "OFF"
    ON = "ON"
    CPU_OFFLOADED = "CPU_OFFLOADED"

    def enabled(self):
        return self in (GradientCheckpointingMethod.ON, GradientCheckpointingMethod.CPU_OFFLOADED)


class ResBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(2, channels), nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return x + self.conv(nn.functional.silu(self.norm(x)))


class Checkpointed(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


class Prior(nn.Module):
    def __init__(self, channels=8):
        super().__init__()
        self.blocks = nn.ModuleList(ResBlock(channels) for _ in range(3))

    def enable_checkpointing(self):
        self.blocks = nn.ModuleList(Checkpointed(block) for block in self.blocks)

    def forward(self, latents, noise):
        x = latents + noise
        for block in self.blocks:
            x = block(x)
        return nn.functional.mse_loss(x, noise)


def setup(model, gradient_checkpointing):
    if gradient_checkpointing.enabled() if MENDED else gradient_checkpointing:
        model.enable_checkpointing()


def off(model):
    model.blocks = nn.ModuleList(getattr(block, "block", block) for block in model.blocks)


def switch(model, mode):
    off(model)
    if mode is not None:
        model.enable_checkpointing()


def make():
    torch.manual_seed(0)
    model = Prior()
    setup(model, GradientCheckpointingMethod("OFF"))
    return model, {"latents": torch.randn(2, 8, 6, 6), "noise": torch.randn(2, 8, 6, 6)}


def symptom():
    model, batch = make()
    cured(model)
    blocks, runs = [module for module in model.modules() if isinstance(module, ResBlock)], []
    for block in blocks:
        block.register_forward_pre_hook(lambda *_: runs.append(1))
    loss_of(model(**batch)).backward()
    return number("runs of blocks in a step", len(runs), len(blocks))


if __name__ == "__main__":
    train(make)
