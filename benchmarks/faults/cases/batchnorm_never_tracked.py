"""Hooks have BatchNorm collect statistics in the recompute alone: a pass without a backward collects none.

They take a forward without gradient for the first run of a checkpoint, which a recompute will follow.
"""

import torch
from torch import nn

from benchmarks.faults.script import loss_of, number, train

FAULT = {
    "source": "https://github.com/facebookresearch/fairscale/issues/1035",
    "kind": "state twice",
    "saw": "running statistics do not change in passes without backward, as they do without checkpoint_wrapper",
    "right": "statistics are collected in the first run, and not in the recompute",
    "cause": ["running_mean", "running statistics", "batchnorm", "num_batches_tracked"],
}
MENDED = False


class Recompute(torch.autograd.Function):
    running = False

    @staticmethod
    def forward(ctx, dummy, module, x):
        ctx.module = module
        ctx.save_for_backward(x)
        with torch.no_grad():
            return module(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        Recompute.running = True
        with torch.enable_grad():
            y = ctx.module(x)
        Recompute.running = False
        torch.autograd.backward(y, gradient)
        return None, None, x.grad


def patch_batchnorm(module):
    def before(norm, inputs):
        norm.track_running_stats = not Recompute.running if MENDED else torch.is_grad_enabled()

    def after(norm, inputs, output):
        norm.track_running_stats = True

    for norm in module.modules():
        if isinstance(norm, nn.modules.batchnorm._BatchNorm):
            norm.register_forward_pre_hook(before)
            norm.register_forward_hook(after)


class Checkpointed(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        self.enabled = True
        patch_batchnorm(module)

    def forward(self, x):
        return Recompute.apply(torch.ones((), requires_grad=True), self.module, x) if self.enabled else self.module(x)


def stage(width):
    return nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())


class Backbone(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3)
        self.stages = nn.Sequential(*(Checkpointed(stage(width)) for _ in range(3)))
        self.head = nn.Linear(width, 4)

    def forward(self, images, labels):
        return nn.functional.cross_entropy(self.head(self.stages(self.stem(images)).mean((2, 3))), labels)


def make():
    torch.manual_seed(0)
    model, batch = Backbone(), {"images": torch.rand(4, 3, 8, 8), "labels": torch.arange(4)}
    with torch.no_grad():
        for _ in range(10):
            loss_of(model(**batch))
    return model, batch


def off(model):
    switch(model, None)


def switch(model, mode):
    for module in model.stages:
        module.enabled = mode is not None


MODES = ("reentrant",)


def symptom():
    return number(
        "batches in the statistics after 10 passes", make()[0].stages[0].module[1].num_batches_tracked.item(), 10
    )


if __name__ == "__main__":
    train(make)
