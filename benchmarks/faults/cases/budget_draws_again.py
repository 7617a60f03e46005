"""Compiled with a memory budget, dropout is computed again in the backward with another mask than in the forward.

The partitioner moves the random operator into the backward's graph, and nothing pairs the states of the generator.
"""

import torch
from torch import nn
from torch._functorch import config

from benchmarks.faults.script import number, train

FAULT = {
    "source": "https://github.com/pytorch/pytorch/issues/190758",
    "kind": "compile",
    "saw": "activation_memory_budget below 1 gives silently wrong gradients where there is dropout",
    "right": "what the forward drew is saved for the backward",
    "cause": ["activation_memory_budget", "random", "dropout", "memory budget"],
    "cure": "",
}
MENDED = False
BUDGET = 1.0 if MENDED else 0.0


class Block(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.up, self.down, self.dropout = nn.Linear(width, 32), nn.Linear(32, width), nn.Dropout(0.5)

    def forward(self, x):
        return x + self.down(self.dropout(torch.relu(self.up(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def make():
    torch.manual_seed(0)
    config.activation_memory_budget = BUDGET
    model = Model()
    model.compile(backend="aot_eager_decomp_partition")
    return model, {"x": torch.randn(8, 16)}


def off(model):
    config.activation_memory_budget = 1.0


def symptom():
    """Recover the last block's mask from its weights' gradient: what was dropped has none."""
    config.activation_memory_budget = BUDGET
    dropped = torch.compile(lambda x: x * nn.functional.dropout(x.cos(), 0.5), backend="aot_eager_decomp_partition")
    torch.manual_seed(0)
    x = torch.rand(1000, requires_grad=True)
    output = dropped(x)
    output.sum().backward()
    return number("entries with a gradient where they were dropped", int(((output == 0) != (x.grad == 0)).sum()), 0)


if __name__ == "__main__":
    train(make)
