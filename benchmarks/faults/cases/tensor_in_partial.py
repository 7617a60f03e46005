"""A position bias that all layers share is bound by `partial`, as the checkpoint function takes no keyword arguments.

A reentrant checkpoint detaches its inputs; what a function carries along it does not see. The backward of each layer
goes through the bias to its embedding, whose graph is gone after the first.
"""

import functools

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, cured, error, loss_of, train

FAULT = {
    "source": "https://github.com/deepspeedai/DeepSpeed/commit/ebf1531ebc2d8f0b64ec53c2c3dc2a313341edb5",
    "kind": "arguments lost",
    "saw": "no keyword arguments; with the tensor bound: Trying to backward through the graph a second time",
    "right": "every tensor is an argument of the checkpoint",
    "cause": ["partial", "closure", "captured", "keyword"],
    "cure": "wrap",
    "held_out": True,
}
MENDED = False


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x, mask, position_bias=None):
        q, k, v = (f(self.norm(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = (q @ k.transpose(-1, -2)).masked_fill(mask, -1e9)
        if position_bias is not None:
            scores = scores + position_bias
        return x + torch.tanh(self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)))


class Stack(Switched):
    use_reentrant = True

    def __init__(self, dim=16, heads=2):
        super().__init__()
        self.embed = nn.Embedding(32, dim)
        self.relative_attention_bias = nn.Embedding(8, heads)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(3))
        self.head = nn.Linear(dim, 32)

    def forward(self, ids):
        places = torch.arange(ids.size(1))
        distance = (places[:, None] - places).clamp(0, 7)
        bias, mask = self.relative_attention_bias(distance).permute(2, 0, 1), places > places[:, None]
        x = self.embed(ids)
        for layer in self.layers:
            if self.gradient_checkpointing:
                if MENDED:
                    x = checkpoint(layer, x, mask, bias, use_reentrant=self.use_reentrant)
                else:
                    bound = functools.partial(layer, position_bias=bias)
                    x = checkpoint(bound, x, mask, use_reentrant=self.use_reentrant)
            else:
                x = layer(x, mask, position_bias=bias)
        return nn.functional.cross_entropy(self.head(x[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def make():
    torch.manual_seed(0)
    return Stack(), {"ids": torch.randint(32, (2, 10))}


def step():
    model, batch = make()
    cured(model)
    loss_of(model(**batch)).backward()


def symptom():
    return error(step)


if __name__ == "__main__":
    train(make)
