"""A hook on the gradient of a weight that two reentrant checkpoints share runs once for each, on a part of it.

Each checkpoint's backward is one of its own, which accumulates what it has. A hook that clips clips both parts.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, gradients, train

FAULT = {
    "source": "https://github.com/pytorch/pytorch/issues/81296",
    "kind": "wrapper and sharding",
    "saw": "a gradient hook on a shared weight fires twice",
    "right": "it fires once, on the sum: with checkpoints that are not reentrant",
    "cause": ["shared", "hook", "reentrant"],
    "cure": "wrap",
}
MENDED = False


class Segment(nn.Module):
    def __init__(self, shared, width=16):
        super().__init__()
        self.norm, self.shared, self.gate = nn.LayerNorm(width), shared, nn.Linear(width, width)

    def forward(self, x):
        return x + torch.sigmoid(self.gate(x)) * self.shared(self.norm(x))


class SharedMLP(Switched):
    use_reentrant = True
    if MENDED:
        use_reentrant = False

    def __init__(self, width=16):
        super().__init__()
        self.stem, self.head = nn.Linear(8, width), nn.Linear(width, 8)
        shared = nn.Linear(width, width)
        self.segments = nn.ModuleList(Segment(shared) for _ in range(2))
        shared.weight.register_hook(lambda grad: grad / grad.norm().clamp_min(1e-6))

    def forward(self, x):
        x = self.stem(x)
        for segment in self.segments:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(segment, x, use_reentrant=self.use_reentrant)
            else:
                x = segment(x)
        return self.head(x)


def make():
    torch.manual_seed(0)
    return SharedMLP(), {"x": torch.randn(6, 8)}


def symptom():
    return gradients(make)


if __name__ == "__main__":
    train(make)
