"""Under autocast a weight is cast once for its uses inside and outside of a checkpoint."""

from torch import autocast, bfloat16, randn
from torch.utils.checkpoint import checkpoint

from benchmarks.cases.toys import Block, Stack, fit

PROVED = {"says": ["3 of 3 blocks proved"], "never": ["fault"]}
DOORS = {"run": PROVED, "watch": PROVED}


def call(block, x):
    return checkpoint(block, x + block.down(block.up(x)), use_reentrant=False)


def loss():
    with autocast("cpu", bfloat16):
        return model(randn(4, 8, 4)).float().square().mean()


model = Stack(Block, call)
fit(model, loss)
