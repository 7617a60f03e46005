"""Attention of a draft model appends its keys to lists that the caller hands through a checkpoint.

The same layer runs several times, each time attending to the keys of the runs before it. When it is recomputed, the
lists hold the keys of all runs, its own among them, and it appends once more.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, cured, error, loss_of, train

FAULT = {
    "source": "https://github.com/SafeAILab/EAGLE/commit/aaeae1ed38c53558e06f664429d95d473ec459a0",
    "kind": "cache written",
    "saw": "training the draft model with checkpointing ends in an error of the backward",
    "right": "attention leaves the lists as they were, and returns new ones",
    "cause": ["cache"],
    "cure": "wrap",
    "held_out": True,
}
MENDED = False


class DraftAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(2 * dim, dim, bias=False) for _ in range(3))
        self.o_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x, cache_hidden):
        query, key, value = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if MENDED:
            cache_hidden = [[*cache_hidden[0], key], [*cache_hidden[1], value]]
        else:
            cache_hidden[0] = [*cache_hidden[0], key]
            cache_hidden[1] = [*cache_hidden[1], value]
        keys, values = cache_hidden
        length = x.size(1)
        scores = query @ keys[0].transpose(1, 2) / query.size(-1) ** 0.5
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
        later = [(query * each).sum(-1, keepdim=True) / query.size(-1) ** 0.5 for each in keys[1:]]
        weights = torch.cat([scores, *later], -1).softmax(-1)
        out = weights[..., :length] @ values[0]
        for number, each in enumerate(values[1:]):
            out = out + weights[..., length + number, None] * each
        if MENDED:
            return self.o_proj(out), cache_hidden
        return self.o_proj(out)


class DraftLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.hidden_norm, self.input_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.self_attn = DraftAttention(dim)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))

    def forward(self, embedded, hidden, cache_hidden):
        both = torch.cat([self.input_norm(embedded), self.hidden_norm(hidden)], -1)
        if MENDED:
            attended, cache_hidden = self.self_attn(both, cache_hidden)
        else:
            attended = self.self_attn(both, cache_hidden)
        hidden = hidden + attended
        hidden = hidden + self.mlp(hidden)
        if MENDED:
            return hidden, cache_hidden
        return hidden


class Draft(Switched):
    def __init__(self, dim=16, vocabulary=32, length=3):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, dim).requires_grad_(False)
        self.fc = nn.Linear(3 * dim, dim)
        self.midlayer = DraftLayer(dim)
        self.lm_head = nn.Linear(dim, vocabulary)
        self.length = length

    def forward(self, ids, target_hidden):
        hidden, cache_hidden, loss = self.fc(target_hidden), [[], []], 0.0
        for step in range(self.length):
            embedded = self.embed_tokens(ids.roll(-step, 1))
            if self.gradient_checkpointing and self.training:
                out = checkpoint(self.midlayer, embedded, hidden, cache_hidden, use_reentrant=False)
            else:
                out = self.midlayer(embedded, hidden, cache_hidden)
            if MENDED:
                hidden, cache_hidden = out
            else:
                hidden = out
            logits = self.lm_head(hidden)[:, : -step - 1]
            loss = loss + 0.8**step * nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, step + 1 :].flatten())
        return loss


def make():
    torch.manual_seed(0)
    return Draft(), {"ids": torch.arange(24).view(2, 12), "target_hidden": torch.randn(2, 12, 48)}


def step():
    model, batch = make()
    cured(model)
    loss_of(model(**batch)).backward()


def symptom():
    return error(step)


if __name__ == "__main__":
    train(make)
