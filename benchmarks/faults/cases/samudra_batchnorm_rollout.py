"""Blocks with BatchNorm are checkpointed in a rollout: the recompute moves their running statistics once more.

Batches of four are few, so that what a model is evaluated with is far from what it would be without checkpointing.
"""

from contextlib import nullcontext

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, cured, loss_of, number, switch_off, train

FAULT = {
    "source": "https://github.com/m2lines/Samudra/issues/572",
    "kind": "state twice",
    "saw": "long rollouts were unstable, and the statistics of BatchNorm were suspected",
    "right": "the recompute leaves running statistics alone",
    "cause": ["running_mean", "running statistics", "BatchNorm", "buffer"],
    "cure": "wrap",
}
MENDED = False


class StatisticsKept:
    """Gives the norms of a block other buffers for a while."""

    def __init__(self, block):
        self.norms = [module for module in block.modules() if isinstance(module, nn.BatchNorm2d)]

    def __enter__(self):
        self.kept = [(norm, dict(norm.named_buffers())) for norm in self.norms]
        for norm, buffers in self.kept:
            for name, buffer in buffers.items():
                setattr(norm, name, buffer.clone())

    def __exit__(self, *error):
        for norm, buffers in self.kept:
            for name, buffer in buffers.items():
                setattr(norm, name, buffer)


class CoreBlock(nn.Module):
    def __init__(self, channels, out):
        super().__init__()
        self.convolution = nn.Sequential(
            nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.GELU(), nn.Conv2d(out, out, 1)
        )
        self.skip = nn.Conv2d(channels, out, 1)

    def forward(self, x):
        return self.skip(x) + self.convolution(x)


class UNet(nn.Module):
    def __init__(self, channels=3, width=8):
        super().__init__()
        self.down, self.middle = CoreBlock(channels, width), CoreBlock(width, width)
        self.up, self.out = CoreBlock(2 * width, width), nn.Conv2d(width, channels, 1)


class Samudra(Switched):
    def __init__(self):
        super().__init__()
        self.unet = UNet()

    def run(self, block, x):
        if not (self.gradient_checkpointing and self.training):
            return block(x)
        if MENDED:
            contexts = lambda: (nullcontext(), StatisticsKept(block))  # noqa: E731
            return checkpoint(block, x, use_reentrant=False, context_fn=contexts)
        else:
            return checkpoint(block, x, use_reentrant=False)

    def step(self, state):
        wide = self.run(self.unet.down, state)
        small = self.run(self.unet.middle, nn.functional.avg_pool2d(wide, 2))
        wide = self.run(self.unet.up, torch.cat([wide, nn.functional.interpolate(small, scale_factor=2)], 1))
        return state + 0.1 * self.unet.out(wide)

    def forward(self, state, targets):
        losses = []
        for target in targets:
            state = self.step(state)
            losses.append((state - target).square().mean())
        return torch.stack(losses).mean()


def make():
    torch.manual_seed(0)
    return Samudra(), {"state": torch.randn(4, 3, 8, 8), "targets": torch.randn(2, 4, 3, 8, 8)}


def running_mean(prepare):
    model, batch = make()
    prepare(model)
    loss_of(model(**batch)).backward()
    return model.unet.middle.convolution[1].running_mean.norm().item()


def symptom():
    return number("norm of a running mean after a step", running_mean(cured), running_mean(switch_off))


if __name__ == "__main__":
    train(make)
