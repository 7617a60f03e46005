"""A launcher writes one name of an option and the plugin reads another: recompute is asked for, and never set.

`...RECOMPUTE_ACTIVATIONS` against `...RECOMPUTE_ACTIVATION`; the default is taken without a word.
"""

import os
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import memory, train

FAULT = {
    "source": "https://github.com/huggingface/accelerate/commit/fbe00d7897c180a4ac67e5651ba263bb6d9400e8",
    "kind": "never checkpointed",
    "saw": "activations are not recomputed though the configuration asks for it",
    "right": "both sides use one name",
    "cause": ["not checkpointed", "never checkpointed", "no block is checkpointed", "switched off"],
    "cure": "wrap",
    "held_out": True,
}
MENDED = False
PREFIX = "MEGATRON_LM_"


def launch(recompute_activations):
    os.environ[PREFIX + "RECOMPUTE_ACTIVATIONS"] = str(recompute_activations).lower()


def read_flag():
    name = PREFIX + ("RECOMPUTE_ACTIVATIONS" if MENDED else "RECOMPUTE_ACTIVATION")
    return os.environ.get(name, "false") == "true"


@dataclass
class Plugin:
    recompute_activation: bool = field(default_factory=read_flag)

    @property
    def recompute_granularity(self):
        return "selective" if self.recompute_activation else None


class CoreAttention(nn.Module):
    def forward(self, q, k, v):
        scores = q @ k.transpose(-1, -2) / q.size(-1) ** 0.5
        future = torch.ones_like(scores, dtype=torch.bool).triu(1)
        return scores.masked_fill(future, -1e4).softmax(-1) @ v


class Layer(nn.Module):
    def __init__(self, dim, granularity):
        super().__init__()
        self.norm, self.qkv, self.dense = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.core_attention, self.granularity = CoreAttention(), granularity

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        if self.granularity == "selective" and self.training:
            context = checkpoint(self.core_attention, q, k, v, use_reentrant=False)
        else:
            context = self.core_attention(q, k, v)
        return x + self.dense(context)


class GPT(nn.Module):
    def __init__(self, plugin, dim=16):
        super().__init__()
        self.word_embeddings = nn.Embedding(32, dim)
        self.layers = nn.ModuleList(Layer(dim, plugin.recompute_granularity) for _ in range(3))

    def forward(self, ids):
        x = self.word_embeddings(ids)
        for layer in self.layers:
            x = layer(x)
        logits = x[:, :-1] @ self.word_embeddings.weight.T
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def off(model):
    switch(model, None)


def switch(model, mode):
    for layer in model.layers:
        layer.granularity = None if mode is None else "selective"


def make():
    torch.manual_seed(0)
    launch(recompute_activations=True)
    return GPT(Plugin()), {"ids": torch.randint(32, (2, 64))}


def symptom():
    return memory(make, off)


if __name__ == "__main__":
    train(make)
