"""Convolutions with BatchNorm are checkpointed, and every recompute updates the running statistics once more.

Outputs and gradients are right; it is evaluation that uses other statistics.
"""

from contextlib import nullcontext

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import cured, loss_of, number, train

FAULT = {
    "source": "https://github.com/Tencent/YOLO-Master/issues/262",
    "kind": "state twice",
    "saw": "num_batches_tracked is 6 after three steps, and running means differ from those of an eager run",
    "right": "the recompute leaves the statistics alone",
    "cause": ["running_mean", "num_batches_tracked", "BatchNorm"],
    "cure": "wrap",
}
MENDED = False


class Still:
    """Has the BatchNorm of a module compute as in training, and keep its statistics."""

    def __init__(self, module):
        self.norms = [each for each in module.modules() if isinstance(each, nn.BatchNorm2d)]

    def __enter__(self):
        self.kept = [(norm.momentum, norm.num_batches_tracked.clone()) for norm in self.norms]
        for norm in self.norms:
            norm.momentum = 0.0

    def __exit__(self, *raised):
        for norm, (momentum, batches) in zip(self.norms, self.kept, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, batches


class Conv(nn.Module):
    def __init__(self, c1, c2, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(c1, c2, 3, stride, 1, bias=False)
        self.bn, self.act = nn.BatchNorm2d(c2), nn.SiLU()

    def forward(self, x):
        return self.act(self.bn(self.conv(x)))


class Bottleneck(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.cv1, self.cv2 = Conv(c, c // 2), Conv(c // 2, c)

    def forward(self, x):
        return x + self.cv2(self.cv1(x))


class Detector(nn.Module):
    checkpointing = True

    def __init__(self):
        super().__init__()
        self.model = nn.ModuleList([Conv(3, 8, 2), Bottleneck(8), Conv(8, 16, 2), Bottleneck(16)])
        self.detect = nn.Conv2d(16, 5, 1)

    def forward(self, image, target):
        x = image
        for module in self.model:
            if self.checkpointing and self.training:
                if MENDED:
                    contexts = lambda module=module: (nullcontext(), Still(module))  # noqa: E731
                    x = checkpoint(module, x, use_reentrant=False, context_fn=contexts)
                else:
                    x = checkpoint(module, x, use_reentrant=False)
            else:
                x = module(x)
        return (self.detect(x) - target).square().mean()


def make():
    torch.manual_seed(0)
    return Detector(), {"image": torch.randn(4, 3, 16, 16) + 1, "target": torch.randn(4, 5, 4, 4)}


def off(model):
    model.checkpointing = False


def switch(model, mode):
    model.checkpointing = mode is not None


MODES = ["non_reentrant"]


def symptom():
    model, batch = make()
    cured(model)
    for _ in range(3):
        loss_of(model(**batch)).backward()
    return number(
        "batches that the first BatchNorm has seen in 3 steps", int(model.model[0].bn.num_batches_tracked), 3
    )


if __name__ == "__main__":
    train(make)
