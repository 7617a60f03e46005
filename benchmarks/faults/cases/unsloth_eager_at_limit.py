"""A compiled module goes over to eager when it has compiled too often, between a forward and its recompute.

The forward saved what compiled code saves; the recompute of the same layer, in the backward pass, saves what eager
code does, which is another number of tensors.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, error, gradients, train

FAULT = {
    "source": "https://github.com/unslothai/unsloth-zoo/pull/1001",
    "kind": "compile",
    "saw": "an internal assertion of checkpointing failed, right after the cache of recompilations ran out",
    "right": "the module goes over to eager between two steps",
    "cause": ["compil", "eager"],
    "cure": "",
}
MENDED = False


def gated(gate, up):
    return nn.functional.silu(gate) * torch.sigmoid(up) * up


class Fast:
    """Runs a function compiled, for as many shapes as the cache has places; for more, eager from then on."""

    def __init__(self, function, limit):
        self.function, self.limit, self.shapes = function, limit, set()
        self.compiled = torch.compile(function, backend="aot_eager", dynamic=False)
        self.eager = self.exhausted = False

    def begin_step(self):
        """Go over to eager where the cache has run out."""
        self.eager = self.exhausted

    def __call__(self, *args):
        self.shapes.add(args[0].shape)
        self.exhausted = len(self.shapes) > self.limit
        eager = self.eager if MENDED else self.exhausted
        return self.function(*args) if eager else self.compiled(*args)


class Layer(nn.Module):
    def __init__(self, width, hidden, fast):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(width, hidden), nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.fast = fast

    def forward(self, x):
        return x + self.down(self.fast(self.gate(x), self.up(x)))


class Model(Switched):
    def __init__(self, width=8):
        super().__init__()
        self.fast = Fast(gated, limit=2)
        self.layers = nn.ModuleList(Layer(width, hidden, self.fast) for hidden in (8, 12, 16))

    def forward(self, x):
        self.fast.begin_step()
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return x


def make():
    torch.manual_seed(0)
    return Model(), {"x": torch.randn(2, 6, 8)}


def symptom():
    return error(lambda: gradients(make))


if __name__ == "__main__":
    train(make)
