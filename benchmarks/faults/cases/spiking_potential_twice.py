"""A spiking neuron keeps its membrane potential on itself, and the recompute moves it again.

Each time step starts from what the last one left. The recompute starts from what all of them have left.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import gradients, train

FAULT = {
    "source": "https://github.com/fangwei123456/spikingjelly/issues/629",
    "kind": "state twice",
    "saw": "results were others with checkpointing: the membrane potential moved twice in a step",
    "right": "the potential is an argument and a result of what is checkpointed",
    "cause": ["attribute", "state", "potential", ".v"],
    "cure": "wrap",
}
MENDED = False
MODES = ("non_reentrant",)


class LIFNode(nn.Module):
    """Integrates what it gets, leaks, and fires smoothly."""

    def __init__(self, tau=2.0):
        super().__init__()
        self.tau, self.v = tau, 0.0

    def forward(self, x, v=None):
        if MENDED:
            v = v + (x - v) / self.tau
            return torch.sigmoid(4 * (v - 1)), v
        else:
            self.v = self.v + (x - self.v) / self.tau
            return torch.sigmoid(4 * (self.v - 1))


class SpikingLayer(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear, self.node = nn.Linear(inputs, outputs), LIFNode()

    def forward(self, x, *state):
        return self.node(self.linear(x), *state)


class SpikingNet(nn.Module):
    checkpointing = True

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([SpikingLayer(6, 16), SpikingLayer(16, 16), SpikingLayer(16, 4)])

    def run(self, layer, *inputs):
        if self.checkpointing:
            return checkpoint(layer, *inputs, use_reentrant=False)
        return layer(*inputs)

    def forward(self, images, steps=4):
        for layer in self.layers:
            layer.node.v = 0.0
        potentials = [torch.zeros([]) for _ in self.layers]
        total = 0
        for _ in range(steps):
            x = images
            for index, layer in enumerate(self.layers):
                if MENDED:
                    x, potentials[index] = self.run(layer, x, potentials[index])
                else:
                    x = self.run(layer, x)
            total = total + x
        return total / steps


def make():
    torch.manual_seed(0)
    return SpikingNet(), {"images": 3 * torch.rand(5, 6)}


def switch(model, mode):
    model.checkpointing = mode is not None


def off(model):
    switch(model, None)


def symptom():
    return gradients(make, off)


if __name__ == "__main__":
    train(make)
