"""Scales that a recompute changes for its time are stashed by reference: what a step has learned of them is lost.

The old scale is copied into the buffer in place, so that the stash has it, too, and putting it back does nothing.
"""

import torch
from torch import nn

from benchmarks.faults.script import Switched, cured, loss_of, number, train

FAULT = {
    "source": "https://github.com/NVIDIA/TransformerEngine/commit/ef7dee4b08e409bfee7f736c5af3cd009cb068ef",
    "kind": "state twice",
    "saw": "after a recompute FP8 runs with the scales of the step before",
    "right": "a clone is stashed",
    "cause": ["fc1.scale"],
}
MENDED = False


class ScaledLinear(nn.Linear):
    """A linear layer whose input is rounded to a grid that follows the largest values seen."""

    def __init__(self, width, out):
        super().__init__(width, out)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        grid = self.scale / 127
        rounded = x + ((x / grid).round().clamp(-127, 127) * grid - x).detach()
        if not Recompute.running:
            self.scale.copy_(0.5 * self.scale + 0.5 * x.detach().abs().max())
        return super().forward(rounded)


class Recompute(torch.autograd.Function):
    running = False

    @staticmethod
    def forward(ctx, layer, x):
        ctx.layer = layer
        ctx.save_for_backward(x)
        ctx.scales = {m: m.scale.clone() for m in layer.modules() if isinstance(m, ScaledLinear)}
        with torch.no_grad():
            return layer(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        updated = {m: m.scale.clone() if MENDED else m.scale for m in ctx.scales}
        for module, scale in ctx.scales.items():
            module.scale.copy_(scale)
        Recompute.running = True
        with torch.enable_grad():
            y = ctx.layer(x)
        Recompute.running = False
        for module, scale in updated.items():
            module.scale.copy_(scale)
        torch.autograd.backward(y, gradient)
        return None, x.grad


class LayerNormMLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1 = ScaledLinear(width, 2 * width)
        self.fc2 = ScaledLinear(2 * width, width)

    def forward(self, x):
        return x + self.fc2(nn.functional.gelu(self.fc1(self.norm(x))))


class Model(Switched):
    use_reentrant = True

    def __init__(self, width=16):
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.layers = nn.ModuleList(LayerNormMLP(width) for _ in range(3))
        self.head = nn.Linear(width, 1)

    def forward(self, x, y):
        x = self.embed(x)
        for layer in self.layers:
            x = Recompute.apply(layer, x) if self.gradient_checkpointing and self.training else layer(x)
        return nn.functional.mse_loss(self.head(x), y)


def make():
    torch.manual_seed(0)
    return Model(), {"x": 4 * torch.rand(8, 4), "y": torch.rand(8, 1)}


def symptom():
    model, batch = make()
    cured(model)
    loss = loss_of(model(**batch))
    learned = model.layers[0].fc1.scale.item()
    loss.backward()
    return number("scale after a step", model.layers[0].fc1.scale.item(), learned)


if __name__ == "__main__":
    train(make)
