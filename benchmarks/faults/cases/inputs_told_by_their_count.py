"""The function that is checkpointed tells its inputs by their number, and the caller has since lost one of them.

`inference_mode` was taken out of the call; the counts stayed.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import cured, error, loss_of, train

FAULT = {
    "source": "https://github.com/NVIDIA/NeMo/commit/e2bdf601f29fce7a341dfe14c0284cb14963632a",
    "kind": "arguments lost",
    "saw": "ValueError: unexpected number of inputs, once core attention is checkpointed",
    "right": "the function expects as many inputs as it is given",
    "cause": ["number of inputs", "number of arguments", "number of positional"],
    "cure": "",
    "held_out": True,
}
MENDED = False
SINGLE, DUAL = (6, 7) if MENDED else (7, 8)


class CoreAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(dim**-0.5))
        self.dropout = nn.Dropout(0.1)

    def forward(self, q, k, v, mask, layer_past=None, rotary=None, relative_bias=None):
        if rotary is not None:
            turn_q, turn_k = rotary if isinstance(rotary, tuple) else (rotary, rotary)
            q, k = q * turn_q.cos() + q.roll(1, -1) * turn_q.sin(), k * turn_k.cos() + k.roll(1, -1) * turn_k.sin()
        scores = q @ k.transpose(-1, -2) * self.scale
        if relative_bias is not None:
            scores = scores + relative_bias
        return self.dropout(scores.masked_fill(mask, -1e4).softmax(-1)) @ v


class ParallelAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.query_key_value, self.dense = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.core_attention = CoreAttention(dim)
        self.checkpoint_core_attention = True

    def _checkpointed_attention_forward(self, *inputs):
        def custom_forward(*inputs):
            if len(inputs) == SINGLE:
                q, k, v, mask, rotary, relative_bias = inputs[:6]
            elif len(inputs) == DUAL:
                q, k, v, mask, rotary_q, rotary_k, relative_bias = inputs[:7]
                rotary = rotary_q, rotary_k
            else:
                raise ValueError("unexpected number of inputs")
            return self.core_attention(q, k, v, mask, rotary=rotary, relative_bias=relative_bias)

        return checkpoint(custom_forward, *inputs, use_reentrant=True)

    def forward(self, x, mask, rotary, relative_bias):
        q, k, v = self.query_key_value(x).chunk(3, -1)
        if self.checkpoint_core_attention:
            turns = rotary if isinstance(rotary, tuple) else (rotary,)
            out = self._checkpointed_attention_forward(q, k, v, mask, *turns, relative_bias)
        else:
            out = self.core_attention(q, k, v, mask, rotary=rotary, relative_bias=relative_bias)
        return self.dense(out)


class Model(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.embed = nn.Embedding(32, dim)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.attentions = nn.ModuleList(ParallelAttention(dim) for _ in range(2))
        self.relative = nn.Parameter(torch.zeros(10, 10))

    def forward(self, ids):
        x, places = self.embed(ids), torch.arange(ids.size(1))
        rotary, mask = places[:, None] / 10 ** (torch.arange(x.size(-1)) / 8), places > places[:, None]
        for norm, attention in zip(self.norms, self.attentions, strict=True):
            x = x + attention(norm(x), mask, rotary, self.relative)
        return nn.functional.cross_entropy((x[:, :-1] @ self.embed.weight.T).flatten(0, 1), ids[:, 1:].flatten())


def off(model):
    switch(model, None)


def switch(model, mode):
    for attention in model.attentions:
        attention.checkpoint_core_attention = mode is not None


def make():
    torch.manual_seed(0)
    return Model(), {"ids": torch.randint(32, (2, 10))}


def step():
    model, batch = make()
    cured(model)
    loss_of(model(**batch)).backward()


def symptom():
    return error(step)


if __name__ == "__main__":
    train(make)
