"""A dummy that requires a gradient opens reentrant checkpoints, but the layer inside never meets it.

The first layers have nothing to train, and their inputs ask for no gradient. The dummy makes their outputs ask for
one; the recompute, which runs without it, has no graph to go back through.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import cured, error, loss_of, train

FAULT = {
    "source": "https://github.com/Nerogar/OneTrainer/commit/d8557c571618c9b7c73b6767f94b3f84737cd77a",
    "kind": "adapters",
    "saw": "RuntimeError: none of output has requires_grad=True, where only later layers are trained",
    "right": "the dummy is part of the recomputed graph where no argument asks for a gradient",
    "cause": ["requires_grad", "reentrant", "requires grad"],
    "cure": "",
    "held_out": True,
}
MENDED = False


class CheckpointLayer(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.checkpoint = layer
        self.dummy = torch.zeros((), requires_grad=True)
        self.enabled = True

    def forward(self, *args):
        if not (self.enabled and torch.is_grad_enabled()):
            return self.checkpoint(*args)
        return checkpoint(self.run, self.dummy, *args, use_reentrant=True)

    def run(self, dummy, *args):
        if MENDED:
            grafted = 0 if any(tensor.requires_grad for tensor in args) else dummy
            args = (args[0] + grafted, *args[1:])
        return self.checkpoint(*args)


class LoRALinear(nn.Linear):
    def __init__(self, inputs, outputs, rank):
        super().__init__(inputs, outputs)
        self.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, inputs) / inputs**0.5) if rank else None
        self.up = nn.Parameter(0.1 * torch.randn(outputs, rank)) if rank else None

    def forward(self, x):
        out = super().forward(x)
        return out if self.down is None else out + x @ self.down.T @ self.up.T


class DoubleStreamBlock(nn.Module):
    def __init__(self, dim, rank):
        super().__init__()
        self.image, self.text = LoRALinear(2 * dim, dim, rank), LoRALinear(dim, dim, rank)

    def forward(self, image, text):
        text = text + torch.tanh(self.text(text))
        return image + torch.tanh(self.image(torch.cat([image, text.mean(1, True).expand_as(image)], -1))), text


class Transformer(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.image_in, self.text_in = LoRALinear(8, dim, 0), LoRALinear(8, dim, 0)
        self.blocks = nn.ModuleList(CheckpointLayer(DoubleStreamBlock(dim, rank)) for rank in (0, 0, 2, 2))
        self.out = LoRALinear(dim, 8, 0)

    def forward(self, image, text, target):
        image, text = self.image_in(image), self.text_in(text)
        for block in self.blocks:
            image, text = block(image, text)
        return nn.functional.mse_loss(self.out(image), target)


def off(model):
    switch(model, None)


def switch(model, mode):
    for block in model.blocks:
        block.enabled = mode is not None


def make():
    torch.manual_seed(0)
    return Transformer(), {"image": torch.randn(2, 9, 8), "text": torch.randn(2, 5, 8), "target": torch.randn(2, 9, 8)}


def step():
    model, batch = make()
    cured(model)
    loss_of(model(**batch)).backward()


def symptom():
    return error(step)


if __name__ == "__main__":
    train(make)
