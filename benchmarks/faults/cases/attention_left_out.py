"""Models that share keys and values between layers have their MLPs and norms checkpointed, and not their attention.

A guard sends them from the branch that wraps whole blocks to the one that wraps submodules, which leaves attention
out on purpose; in training nothing is shared through a cache, and the guard has no reason.
"""

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from benchmarks.faults.script import number, train

FAULT = {
    "source": "https://github.com/NVIDIA-NeMo/Automodel/pull/3677",
    "kind": "never checkpointed",
    "saw": "16 % more memory: the attention of no layer is recomputed any more",
    "right": "whole blocks are checkpointed",
    "cause": ["self_attn", "attention is not recomputed", "whole block"],
}
MENDED = False


class Attention(nn.Module):
    calls = 0

    def __init__(self, width, shares):
        super().__init__()
        self.shares = shares
        self.q_proj = nn.Linear(width, width)
        self.kv_proj = None if shares else nn.Linear(width, 2 * width)
        self.o_proj = nn.Linear(width, width)

    def forward(self, x, shared):
        Attention.calls += 1
        kv = shared if self.shares else self.kv_proj(x)
        k, v = kv.chunk(2, -1)
        weights = (self.q_proj(x) @ k.mT / x.shape[-1] ** 0.5).softmax(-1)
        return self.o_proj(weights @ v), kv


class GemmaDecoderLayer(nn.Module):
    def __init__(self, width, shares):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(width)
        self.self_attn = Attention(width, shares)
        self.post_attention_layernorm = nn.RMSNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x, shared):
        y, shared = self.self_attn(self.input_layernorm(x), shared)
        x = x + y
        return x + self.mlp(self.post_attention_layernorm(x)), shared


class Gemma(nn.Module):
    def __init__(self, width=16, vocabulary=32):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(GemmaDecoderLayer(width, shares=i > 0) for i in range(3))
        self.lm_head = nn.Linear(width, vocabulary)

    def forward(self, input_ids, labels):
        x, shared = self.embed_tokens(input_ids), None
        for layer in self.layers:
            x, shared = layer(x, shared)
        return nn.functional.cross_entropy(self.lm_head(x).flatten(0, 1), labels.flatten())


def apply_ac(model):
    whole = True if MENDED else not any(layer.self_attn.shares for layer in model.layers)
    for i, layer in enumerate(model.layers):
        if whole:
            model.layers[i] = checkpoint_wrapper(layer)
        else:
            for name in ("mlp", "input_layernorm", "post_attention_layernorm"):
                setattr(layer, name, checkpoint_wrapper(getattr(layer, name)))


def make():
    torch.manual_seed(0)
    model = Gemma()
    apply_ac(model)
    ids = torch.arange(24).reshape(2, 12)
    return model, {"input_ids": ids, "labels": ids.roll(-1, 1)}


def off(model):
    switch(model, None)


def switch(model, mode):
    for module in model.modules():
        if hasattr(module, "checkpoint_fn"):
            module.__dict__.setdefault("checkpoints", module.checkpoint_fn)
            module.checkpoint_fn = module.checkpoints if mode else lambda inner, *args: inner(*args)


MODES = ("non_reentrant",)


def symptom():
    model, batch = make()
    loss = model(**batch)
    Attention.calls = 0
    loss.backward()
    return number("attentions recomputed in a step", Attention.calls, 3)


if __name__ == "__main__":
    train(make)
