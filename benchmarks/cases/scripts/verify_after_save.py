"""`verify` of a model whose policy needs one mode: the other one is skipped, with the reason."""

import torch

from benchmarks.cases.toys import Block, Stack
from ckpt_surgery import verify, wrap_blocks

DOORS = {"plain": {"says": ["ok: True"], "never": ["FAILED"]}}

model = Stack(Block, depth=4)
wrap_blocks(model, save=["matmul:2"])
report = verify(model, torch.randn(2, 8, 4))
print(report)
print("ok:", report.ok)
