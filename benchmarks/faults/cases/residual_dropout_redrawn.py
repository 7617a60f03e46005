"""Blocks are wrapped with preserve_rng_state=False, and the recipe has dropout since.

The recompute draws another mask than the forward, so that gradients belong to another sample than the loss.
"""

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from benchmarks.faults.script import gradients, train

FAULT = {
    "source": "https://github.com/allenai/OLMo-core/pull/828",
    "kind": "random numbers",
    "saw": "activation checkpointing alone moves the loss of a training from 2.19 to 2.49",
    "right": "the state of the generators is preserved where dropout is above 0",
    "cause": ["preserve_rng_state", "drew others", "other random numbers", "dropout"],
}
MENDED = False


class Attention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.w_qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.w_out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        q, k, v = self.w_qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.w_out(y.transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    def __init__(self, d_model, dropout):
        super().__init__()
        self.attention_norm = nn.RMSNorm(d_model)
        self.attention = Attention(d_model, 2)
        self.feed_forward = nn.Sequential(
            nn.RMSNorm(d_model), nn.Linear(d_model, 32), nn.SiLU(), nn.Linear(32, d_model)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, h):
        h = h + self.dropout(self.attention(self.attention_norm(h)))
        return h + self.dropout(self.feed_forward(h))


class Transformer(nn.Module):
    def __init__(self, d_model=16, vocab_size=32, residual_dropout=0.1):
        super().__init__()
        self.embeddings = nn.Embedding(vocab_size, d_model)
        self.blocks = nn.ModuleDict({str(i): TransformerBlock(d_model, residual_dropout) for i in range(3)})
        self.lm_head = nn.Linear(d_model, vocab_size, bias=False)

    def apply_activation_checkpointing(self):
        for name, block in self.blocks.items():
            drops = any(isinstance(module, nn.Dropout) and module.p > 0 for module in block.modules())
            self.blocks[name] = checkpoint_wrapper(block, preserve_rng_state=drops if MENDED else False)

    def forward(self, input_ids, labels):
        h = self.embeddings(input_ids)
        for block in self.blocks.values():
            h = block(h)
        return nn.functional.cross_entropy(self.lm_head(h).flatten(0, 1), labels.flatten())


def make():
    torch.manual_seed(0)
    model = Transformer()
    model.apply_activation_checkpointing()
    ids = torch.arange(24).reshape(2, 12)
    return model, {"input_ids": ids, "labels": ids.roll(-1, 1)}


def off(model):
    switch(model, None)


def switch(model, mode):
    for block in model.blocks.values():
        block.__dict__.setdefault("checkpoints", block.checkpoint_fn)
        block.checkpoint_fn = block.checkpoints if mode else lambda module, *args: module(*args)


MODES = ("non_reentrant",)


def symptom():
    return gradients(make, off)


if __name__ == "__main__":
    train(make)
