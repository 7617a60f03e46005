"""Layers that share the keys of an earlier one read them, when recomputed, from a forward without gradient.

The first layer puts its keys and values into a dict. Reentrant recomputes run backwards: the readers come first, and
find what the forward left there under no_grad, so that the writer gets no gradient from them.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, gradients, train

FAULT = {
    "source": "https://github.com/unslothai/unsloth-zoo/commit/26300cf03d943ca7958d4443fc7316ae17cb0e9f",
    "kind": "cache written",
    "saw": "gradients of the key and value projections point elsewhere (cosine 0.14)",
    "right": "the writer gets the gradients of all that read its keys",
    "cause": ["CKPT007", "CKPT012", "is shared", "detached"],
    "cure": "wrap",
}
MENDED = False


class Attention(nn.Module):
    def __init__(self, width, shares):
        super().__init__()
        self.shares = shares
        self.q_proj = nn.Linear(width, width)
        self.o_proj = nn.Linear(width, width)
        if not shares:
            self.k_proj = nn.Linear(width, width)
            self.v_proj = nn.Linear(width, width)

    def forward(self, x, shared):
        if not self.shares:
            shared["k"], shared["v"] = self.k_proj(x), self.v_proj(x)
        y = nn.functional.scaled_dot_product_attention(self.q_proj(x), shared["k"], shared["v"], is_causal=True)
        return self.o_proj(y)


class DecoderLayer(nn.Module):
    def __init__(self, width, shares):
        super().__init__()
        self.self_attn = Attention(width, shares)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x, shared):
        x = x + self.self_attn(x, shared)
        return x + self.mlp(x)


class Gemma(Switched):
    use_reentrant = False if MENDED else True  # noqa: SIM211

    def __init__(self, width=16, vocabulary=32):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(DecoderLayer(width, shares=i > 0) for i in range(3))
        self.lm_head = nn.Linear(width, vocabulary)

    def forward(self, input_ids, labels):
        x, shared = self.embed_tokens(input_ids), {}
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(layer, x, shared, use_reentrant=self.use_reentrant)
            else:
                x = layer(x, shared)
        return nn.functional.cross_entropy(self.lm_head(x).flatten(0, 1), labels.flatten())


def make():
    torch.manual_seed(0)
    ids = torch.arange(24).reshape(2, 12)
    return Gemma(), {"input_ids": ids, "labels": ids.roll(-1, 1)}


def symptom():
    return gradients(make)


if __name__ == "__main__":
    train(make)
