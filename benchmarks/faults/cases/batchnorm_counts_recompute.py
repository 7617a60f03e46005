"""Batch norm inside a checkpoint moves its running statistics twice in every step.

The recompute is a training forward like the first: it moves mean and variance by the momentum once more.
"""

import contextlib
import functools

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import cured, loss_of, number, train

FAULT = {
    "source": "https://github.com/pytorch/pytorch/issues/96136",
    "kind": "state twice",
    "saw": "running mean and variance after a step are those after two, reentrant or not",
    "right": "only the forward moves them",
    "cause": ["running_mean", "running statistics", "batch norm", "BatchNorm", "buffer", "num_batches_tracked"],
    "cure": "",
    "held_out": True,
}
MENDED = False


if MENDED:

    class Unmoved:
        """What a recompute runs in. A second backward through a retained graph enters it again."""

        def __init__(self, block):
            self.norms = [module for module in block.modules() if isinstance(module, nn.BatchNorm2d)]

        def __enter__(self):
            self.momenta = [norm.momentum for norm in self.norms]
            for norm in self.norms:
                norm.momentum = 0.0

        def __exit__(self, *_):
            for norm, momentum in zip(self.norms, self.momenta, strict=True):
                norm.momentum = momentum
                norm.num_batches_tracked -= 1

    def with_unmoved(stage):
        return contextlib.nullcontext(), Unmoved(stage)


def conv_bn(inputs, outputs, stride):
    conv = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs, momentum=0.3), nn.ReLU())


class Net(nn.Module):
    def __init__(self, checkpointed=True):
        super().__init__()
        self.stages = nn.ModuleList([conv_bn(3, 8, 1), conv_bn(8, 8, 2), conv_bn(8, 16, 2)])
        self.classifier = nn.Linear(16, 5)
        self.checkpointed = checkpointed

    def forward(self, images, labels):
        x = images
        for stage in self.stages:
            if self.checkpointed:
                if MENDED:
                    contexts = functools.partial(with_unmoved, stage)
                    x = checkpoint(stage, x, use_reentrant=False, context_fn=contexts)
                else:
                    x = checkpoint(stage, x, use_reentrant=False)
            else:
                x = stage(x)
        return nn.functional.cross_entropy(self.classifier(x.mean((2, 3))), labels)


def off(model):
    model.checkpointed = False


def switch(model, mode):
    model.checkpointed = mode is not None


def make():
    torch.manual_seed(0)
    return Net(), {"images": 1 + torch.randn(8, 3, 8, 8), "labels": torch.arange(8) % 5}


def mean_after_a_step(prepare):
    model, batch = make()
    prepare(model)
    loss_of(model(**batch)).backward()
    return model.stages[0][1].running_mean.abs().sum().item()


def symptom():
    return number("running mean after a step", mean_after_a_step(cured), mean_after_a_step(off))


if __name__ == "__main__":
    train(make)
