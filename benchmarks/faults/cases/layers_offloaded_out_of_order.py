"""Layers are offloaded in the order in which they were registered, and run in another.

The conductor fetches the layer behind the one that runs and sends the one before away, by index. The refiners are
registered last and run first, so that the weights of the layer that is next are elsewhere.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, error, train

FAULT = {
    "source": "https://github.com/Nerogar/OneTrainer/commit/a353c16f53f34ec82d3edfe89e5b2ea650adcb24",
    "kind": "offload",
    "saw": "layer offloading of Z-Image runs layers whose weights are not on the device",
    "right": "layers are registered in the order in which they run",
    "cause": ["in another order", "other order", "emptied", "moved away", "offload"],
}
MENDED = False


class Conductor:
    """Keeps the weights of two layers at a time."""

    def __init__(self):
        self.layers = []
        self.home = {}

    def add(self, layers):
        for layer in layers:
            self.layers.append(layer)
            self.home[layer] = {p: p.data for p in layer.parameters()}
            layer.register_forward_pre_hook(self.before)

    def start(self):
        for index, layer in enumerate(self.layers):
            self.move(index, here=index < 2)

    def move(self, index, here):
        layer = self.layers[index]
        for parameter, data in self.home[layer].items():
            parameter.data = data if here else torch.empty(0)

    def before(self, layer, inputs):
        index = self.layers.index(layer)
        step = -1 if torch._C._current_graph_task_id() != -1 else 1
        if 0 <= index + step < len(self.layers):
            self.move(index + step, here=True)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))

    def forward(self, x):
        return x + self.feed_forward(self.norm(x))


class Transformer(Switched):
    use_reentrant = True

    def __init__(self, width=16):
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(3))
        self.noise_refiner = nn.ModuleList(Layer(width) for _ in range(2))
        self.final = nn.Linear(width, 4)
        self.conductor = Conductor()
        for stack in (self.noise_refiner, self.layers) if MENDED else (self.layers, self.noise_refiner):
            self.conductor.add(stack)

    def forward(self, latents, target):
        x = self.embed(latents)
        self.conductor.start()
        for layer in (*self.noise_refiner, *self.layers):
            if self.gradient_checkpointing:
                x = checkpoint(layer, x, use_reentrant=True)
            else:
                x = layer(x)
        return nn.functional.mse_loss(self.final(x), target)


def make():
    torch.manual_seed(0)
    return Transformer(), {"latents": torch.rand(2, 9, 4), "target": torch.rand(2, 9, 4)}


def symptom():
    return error(lambda: train(make, steps=2))


if __name__ == "__main__":
    train(make)
