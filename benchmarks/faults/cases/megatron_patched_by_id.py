"""Models whose inputs were made to ask for a gradient are remembered by id, and ids are used again.

A second model that gets the place of one that is gone is taken for patched. Its frozen embeddings ask for no gradient
then, and reentrant checkpoints give its adapters none.
"""

import weakref

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, gradients, train

FAULT = {
    "source": "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/5929",
    "kind": "adapters",
    "saw": "adapters of a second model in the same process got no gradient, at a finite loss",
    "right": "a WeakSet remembers the models themselves",
    "cause": ["requires_grad", "reentrant"],
    "cure": "wrap",
}
MENDED = False
PATCHED = weakref.WeakSet() if MENDED else set()


def key_of(model):
    return model if MENDED else id(model)


def enable_input_gradients(model):
    """Have the inputs of the first layer ask for a gradient, once for each model."""
    if key_of(model) not in PATCHED:
        model.embedding.register_forward_hook(lambda module, args, output: output.requires_grad_())
        PATCHED.add(key_of(model))


class TransformerLayer(nn.Module):
    def __init__(self, width, rank=2):
        super().__init__()
        self.linear_qkv, self.linear_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.requires_grad_(False)
        self.linear_in, self.linear_out = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)

    def forward(self, hidden):
        q, k, v = self.linear_qkv(hidden).chunk(3, -1)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return hidden + self.linear_proj(mixed) + self.linear_out(self.linear_in(mixed))


class GPTModel(Switched):
    use_reentrant = True

    def __init__(self, width=16):
        super().__init__()
        self.embedding = nn.Embedding(32, width).requires_grad_(False)
        self.layers = nn.ModuleList(TransformerLayer(width) for _ in range(3))
        self.output_layer = nn.Linear(width, 32)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden = checkpoint(layer, hidden, use_reentrant=self.use_reentrant)
            else:
                hidden = layer(hidden)
        return nn.functional.cross_entropy(self.output_layer(hidden[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def sweep():
    """Train one model after another, and return the first that has the place of one that is gone."""
    places, model = set(), GPTModel()
    while id(model) not in places:
        enable_input_gradients(model)
        places.add(id(model))
        model = GPTModel()
    return model


def make():
    model = sweep()
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    enable_input_gradients(model)
    return model, {"tokens": torch.randint(32, (2, 10))}


def symptom():
    return gradients(make)


if __name__ == "__main__":
    train(make)
