"""The token embedding is checkpointed on its own: nothing before the last norm is trained.

Token ids are integers, so a reentrant checkpoint whose only input they are returns an output without gradient; the
checkpoints of the blocks, which begin with that output, lose theirs in the same way.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import gradients, train

FAULT = {
    "source": "https://github.com/FlagAI-Open/FlagAI/pull/383",
    "kind": "adapters",
    "saw": "the token embedding stays as it was initialised, and the loss hardly falls",
    "right": "the embedding is not checkpointed: there is nothing to save in it",
    "cause": ["requires_grad", "use_reentrant=False", "reentrant checkpointing cuts it off"],
    "cure": "wrap",
}
MENDED = False


def calls(module):
    def forward(*inputs):
        return module(*inputs)

    return forward


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.feed_forward = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))

    def forward(self, h, mask):
        x = self.norm(h)
        h = h + self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]
        return h + self.feed_forward(h)


class Model(nn.Module):
    def __init__(self, width=16, vocabulary=32, checkpoint_activations=True):
        super().__init__()
        self.checkpoint_activations = checkpoint_activations
        self.tok_embeddings = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(3))
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        mask = torch.triu(torch.full((tokens.shape[1],) * 2, float("-inf")), diagonal=1)
        if MENDED:
            h = self.tok_embeddings(tokens)
        else:
            h = (
                checkpoint(calls(self.tok_embeddings), tokens)
                if self.checkpoint_activations
                else self.tok_embeddings(tokens)
            )
        for layer in self.layers:
            h = checkpoint(calls(layer), h, mask) if self.checkpoint_activations else layer(h, mask)
        logits = self.output(self.norm(h))
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def make():
    torch.manual_seed(0)
    return Model(), {"tokens": torch.arange(24).reshape(2, 12)}


def off(model):
    model.checkpoint_activations = False


def switch(model, mode):
    model.checkpoint_activations = mode is not None


MODES = ("reentrant",)


def symptom():
    return gradients(make, off)


if __name__ == "__main__":
    train(make)
