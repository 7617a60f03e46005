"""A policy of torch keeps an addition in place: the load of a gate is added twice."""

import functools

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from benchmarks.cases.toys import Stack, fit, squares

FAULT = {"exit": 1, "says": ["load"], "never": ["2 of 2 blocks proved", "--wrap"]}
DOORS = {"plain": {"exit": 1}, "run": FAULT, "watch": FAULT}
KEPT = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.add_.Tensor)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(16, 16)
        self.load = None

    def forward(self, x):
        scores = self.gate(x).softmax(-1)
        load = scores.detach().sum((0, 1))
        self.load = load if self.load is None else self.load.add_(load)
        return x * scores


def policy(context, operator, *arguments, **keywords):
    return CheckpointPolicy.MUST_SAVE if operator in KEPT else CheckpointPolicy.PREFER_RECOMPUTE


def call(block, x):
    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    return checkpoint(block, x, use_reentrant=False, context_fn=contexts)


model = Stack(Gated, call, depth=2)
for _ in range(3):
    fit(model, squares(model), steps=1)
    for block in model.blocks:
        block.load = None
