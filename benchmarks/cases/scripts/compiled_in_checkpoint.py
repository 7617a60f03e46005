"""A checkpoint runs compiled blocks, which the model does not hold."""

from torch import compile as compiled
from torch.utils.checkpoint import checkpoint

from benchmarks.cases.toys import Block, Stack, fit, squares

LEFT = {"says": ["compiled_in_checkpoint.py:14", "not seen to run"], "never": ["OptimizedModule", "fault"]}
DOORS = {"run": LEFT, "watch": LEFT, "wrap": {"never": ["OptimizedModule", "fault"]}}


def call(block, x):
    fast = FAST.setdefault(block, compiled(block, backend="eager"))
    return checkpoint(fast, x, use_reentrant=False)


FAST = {}
model = Stack(Block, call)
fit(model, squares(model))
