"""Features go to the decoder in a list, and the Function that checkpoints it can save tensors only.

`save_for_backward` takes each argument of the Function, and refuses one that is a list of tensors.
"""

import torch
from torch import nn

from benchmarks.faults.script import Switched, error, gradients, train

FAULT = {
    "source": "https://github.com/modelscope/ms-swift/commit/e491a00d26f09ac151df356734af734ae7116bfb",
    "kind": "arguments lost",
    "saw": "a model with vision did not train under Megatron with checkpointing on",
    "right": "the list is stacked to one tensor before it crosses the boundary of the checkpoint",
    "cause": ["CKPT007", "of type list", "in a list", "inside a list", "container"],
    "cure": "wrap",
}
MENDED = False


class CheckpointFunction(torch.autograd.Function):
    """Runs without a graph, and again with one in the backward pass, as in Megatron."""

    @staticmethod
    def forward(ctx, run, *args):
        ctx.run = run
        with torch.no_grad():
            output = run(*args)
        ctx.save_for_backward(*args)
        return output

    @staticmethod
    def backward(ctx, gradient):
        inputs = [saved.detach().requires_grad_(saved.requires_grad) for saved in ctx.saved_tensors]
        with torch.enable_grad():
            output = ctx.run(*inputs)
        torch.autograd.backward(output, gradient)
        return None, *(each.grad for each in inputs)


class VisionTower(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.patch_embed = nn.Linear(6, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, pixels):
        hidden = self.patch_embed(pixels)
        features = []
        for block in self.blocks:
            hidden = hidden + torch.relu(block(hidden))
            features.append(hidden)
        return hidden, features


class DecoderLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mix, self.up, self.down = nn.Linear(width, width), nn.Linear(width, 32), nn.Linear(32, width)

    def forward(self, hidden, visual):
        hidden = hidden + torch.tanh(self.mix(hidden.cumsum(1))) + visual
        return hidden + self.down(torch.relu(self.up(hidden)))


class VisionModel(Switched):
    use_reentrant = True

    def __init__(self, width=16):
        super().__init__()
        self.visual = VisionTower(width)
        self.layers = nn.ModuleList(DecoderLayer(width) for _ in range(2))
        self.head = nn.Linear(width, 8)

    def decode(self, hidden, deepstack):
        for layer, visual in zip(self.layers, deepstack, strict=True):
            hidden = layer(hidden, visual)
        return hidden

    def forward(self, pixels):
        hidden, deepstack = self.visual(pixels)
        if MENDED:
            deepstack = torch.stack(deepstack)
        if self.gradient_checkpointing and self.training:
            hidden = CheckpointFunction.apply(self.decode, hidden, deepstack)
        else:
            hidden = self.decode(hidden, deepstack)
        return self.head(hidden).square().mean()


def make():
    torch.manual_seed(0)
    return VisionModel(), {"pixels": torch.randn(2, 5, 6)}


def symptom():
    return error(lambda: gradients(make))


if __name__ == "__main__":
    train(make)
