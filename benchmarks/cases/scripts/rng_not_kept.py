"""Dropout under `preserve_rng_state=False`: the recompute drops other places."""

from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.cases.toys import Stack, fit, squares

FAULT = {"says": ["preserve_rng_state=True", "rng_not_kept.py:23"], "never": ["--wrap"]}
DOORS = {"run": FAULT, "watch": FAULT, "check": {"exit": 1, "says": ["CKPT012"]}}


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(16, 16)
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        return x + self.drop(self.mix(x))


def call(block, x):
    return checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)


model = Stack(Dropping, call)
fit(model, squares(model))
