"""Whether a layer of a vision tower trains is asked of the first one alone, which is frozen.

The helper that wraps the layers keeps its answer for all of them. The inputs of layers that train are not made to ask
for a gradient then, and a reentrant checkpoint gives their parameters none.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, gradients, train

FAULT = {
    "source": "https://github.com/modelscope/ms-swift/pull/10142",
    "kind": "adapters",
    "saw": "layers that train behind a frozen part of the tower got no gradients",
    "right": "each layer is asked for its own parameters, at each call",
    "cause": ["requires_grad", "reentrant"],
    "cure": "wrap",
}
MENDED = False


def trains(module):
    return any(parameter.requires_grad for parameter in module.parameters())


def checkpoint_layers(tower):
    """Put a checkpoint round the forward of every layer."""
    answer = None

    def wrap(layer):
        forward = layer.forward

        def checkpointed(hidden):
            nonlocal answer
            if not (tower.gradient_checkpointing and tower.training):
                return forward(hidden)
            if MENDED:
                answer = trains(layer)
            else:
                if answer is None:
                    answer = trains(layer)
            if answer:
                hidden = hidden.requires_grad_()
            return checkpoint(forward, hidden, use_reentrant=tower.use_reentrant)

        layer.forward = checkpointed

    for layer in tower.blocks:
        wrap(layer)


class VisionBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, hidden):
        q, k, v = self.qkv(self.norm(hidden)).chunk(3, -1)
        return hidden + self.proj(nn.functional.scaled_dot_product_attention(q, k, v))


class VisionTower(Switched):
    use_reentrant = True

    def __init__(self, width=16):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, width, 4, 4)
        self.blocks = nn.ModuleList(VisionBlock(width) for _ in range(4))
        self.merger = nn.Linear(width, 8)

    def forward(self, pixels):
        hidden = self.patch_embed(pixels).flatten(2).transpose(1, 2)
        for block in self.blocks:
            hidden = block(hidden)
        return self.merger(hidden)


def make():
    torch.manual_seed(0)
    tower = VisionTower()
    tower.patch_embed.requires_grad_(False)
    tower.blocks[:2].requires_grad_(False)
    checkpoint_layers(tower)
    return tower, {"pixels": torch.randn(2, 3, 12, 12)}


def symptom():
    return gradients(make)


if __name__ == "__main__":
    train(make)
