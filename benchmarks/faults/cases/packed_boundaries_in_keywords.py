"""The boundaries of packed sequences are among the keywords, and the checkpoint's helper passes on positions alone.

Layers read `kwargs.get("cu_seqlens")`. Without it, token shift and recurrence run from one document into the next.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, gradients, train

FAULT = {
    "source": "https://github.com/fla-org/flash-linear-attention/commit/090ad265f813ae643ffe77347278639f814181f4",
    "kind": "arguments lost",
    "saw": "packed sequences do not work for RWKV models with gradient checkpointing",
    "right": "`cu_seqlens` is an argument of the layers, and handed to them through the checkpoint",
    "cause": ["cu_seqlens", "keyword", "kwargs"],
    "cure": "wrap",
    "held_out": True,
}
MENDED = False


def starts(cu_seqlens, length):
    first = torch.zeros(length, dtype=torch.bool)
    first[cu_seqlens[:-1] if cu_seqlens is not None else 0] = True
    return first


class RWKVLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.shift, self.decay = nn.Parameter(torch.rand(dim)), nn.Parameter(torch.randn(dim))
        self.key, self.value, self.output = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, hidden_states, v_first=None, cu_seqlens=None, **kwargs):
        x = self.norm(hidden_states)
        fresh = starts(cu_seqlens, x.size(1))
        before = x.roll(1, 1).masked_fill(fresh[:, None], 0)
        mixed = x + (before - x) * self.shift
        value = self.value(mixed)
        v_first = value if v_first is None else v_first
        update, state, states = torch.sigmoid(self.key(mixed)) * (value + v_first) / 2, 0, []
        for place, each in enumerate(update.unbind(1)):
            state = each if fresh[place] else torch.sigmoid(self.decay) * state + each
            states.append(state)
        return hidden_states + self.output(torch.stack(states, 1)), v_first


class RWKV(Switched):
    def __init__(self, dim=16):
        super().__init__()
        self.embeddings = nn.Embedding(32, dim)
        self.layers = nn.ModuleList(RWKVLayer(dim) for _ in range(3))
        self.lm_head = nn.Linear(dim, 32)

    def _checkpoint(self, layer, *args, **kwargs):
        if MENDED:
            return checkpoint(layer, *args, use_reentrant=False, **kwargs)
        return checkpoint(layer, *args, use_reentrant=False)

    def forward(self, input_ids, labels, **kwargs):
        hidden_states, v_first = self.embeddings(input_ids), None
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states, v_first = self._checkpoint(layer.__call__, hidden_states, v_first, **kwargs)
            else:
                hidden_states, v_first = layer(hidden_states, v_first, **kwargs)
        return nn.functional.cross_entropy(self.lm_head(hidden_states).flatten(0, 1), labels.flatten())


def make():
    torch.manual_seed(0)
    ids = torch.randint(32, (1, 13))
    return RWKV(), {"input_ids": ids[:, :-1], "labels": ids[:, 1:], "cu_seqlens": torch.tensor([0, 5, 9, 12])}


def symptom():
    return gradients(make)


if __name__ == "__main__":
    train(make)
