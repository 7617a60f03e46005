"""The inputs of reentrant checkpoints come from a frozen embedding: no block gets a gradient.

The base of a LoRA training is frozen, so that nothing before the first block asks for a gradient, and reentrant
checkpointing makes a graph only where one of its inputs does.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, gradients, train

FAULT = {
    "source": "https://github.com/huggingface/peft/issues/137",
    "kind": "adapters",
    "saw": "RuntimeError: element 0 of tensors does not require grad",
    "right": "the output of the embedding asks for a gradient, or checkpointing is not reentrant",
    "cause": ["requires_grad", "reentrant"],
    "cure": "wrap",
}
MENDED = False


class Layer(nn.Module):
    def __init__(self, width=16, rank=2):
        super().__init__()
        self.base = nn.Linear(width, width)
        self.base.requires_grad_(False)
        self.lora_a = nn.Linear(width, rank, bias=False)
        self.lora_b = nn.Linear(rank, width, bias=False)

    def forward(self, x):
        return x + torch.tanh(self.base(x) + self.lora_b(self.lora_a(x)))


class Model(Switched):
    use_reentrant = True

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.embed.requires_grad_(False)
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.head = nn.Linear(16, 32)

    def forward(self, ids):
        x = self.embed(ids)
        if MENDED:
            x.requires_grad_()
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(layer, x, use_reentrant=self.use_reentrant)
            else:
                x = layer(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())


def make():
    torch.manual_seed(0)
    return Model(), {"ids": torch.arange(24).reshape(2, 12)}


def symptom():
    return gradients(make)


if __name__ == "__main__":
    train(make)
