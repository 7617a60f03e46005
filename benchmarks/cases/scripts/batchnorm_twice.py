"""BatchNorm in checkpointed blocks moves its statistics twice a step."""

from torch import nn, randn, relu
from torch.utils.checkpoint import checkpoint

from benchmarks.cases.toys import Stack, fit

FAULT = {"says": ["running_mean", "batchnorm_twice.py:23"], "never": ["3 of 3 blocks proved"]}
DOORS = {"run": FAULT, "watch": FAULT}


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(16, 16)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x):
        return x + relu(self.norm(self.mix(x)))


def call(block, x):
    return checkpoint(block, x, use_reentrant=False)


model = Stack(Residual, call)
fit(model, lambda: model(randn(8, 4)).square().mean())
