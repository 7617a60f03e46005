"""A drafting loop checkpoints each of its steps, and keys of earlier steps reach a later one in nested lists.

A reentrant checkpoint neither takes tensors in lists as its inputs nor gives lists in its output a gradient, so
that no step is trained through the keys that it left for the next ones.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, gradients, train

FAULT = {
    "source": "https://github.com/SafeAILab/EAGLE/pull/274",
    "kind": "arguments lost",
    "saw": "the loss stays high and unstable",
    "right": "one checkpoint around the whole loop",
    "cause": ["CKPT007", "CKPT010", "container", "inside a list", "in a list", "nested"],
    "cure": "",
}
MENDED = False
CHECKPOINTED = "loop" if MENDED else "step"


class DraftLayer(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(2 * width, width), nn.Linear(2 * width, width, bias=False)
        self.v_proj, self.o_proj = nn.Linear(2 * width, width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, embedded, hidden, cache_hidden, mask):
        x = torch.cat([embedded, hidden], -1)
        query = self.q_proj(x)
        keys, values = [*cache_hidden[0], self.k_proj(x)], [*cache_hidden[1], self.v_proj(x)]
        scores = torch.cat(
            [query @ keys[0].transpose(1, 2) + mask] + [(query * k).sum(-1, True) for k in keys[1:]], -1
        )
        weights = scores.softmax(-1)
        length = x.shape[1]
        mixed = weights[..., :length] @ values[0]
        for step, value in enumerate(values[1:]):
            mixed = mixed + weights[..., length + step : length + step + 1] * value
        hidden = hidden + self.o_proj(mixed)
        return hidden + self.mlp(hidden), [keys, values]


class DraftModel(Switched):
    use_reentrant = True

    def __init__(self, steps=3):
        super().__init__()
        self.steps = steps
        self.embed_tokens = nn.Embedding(24, 16)
        self.fc = nn.Linear(16, 16)
        self.midlayer = DraftLayer()
        self.lm_head = nn.Linear(16, 24)

    def draft(self, ids, hidden):
        length = ids.shape[1]
        mask = torch.full((length, length), float("-inf")).triu(1)
        cache, losses = [[], []], []
        for _ in range(self.steps):
            if self.gradient_checkpointing and self.training and CHECKPOINTED == "step":
                hidden, cache = checkpoint(
                    self.midlayer, self.embed_tokens(ids), hidden, cache, mask, use_reentrant=self.use_reentrant
                )
            else:
                hidden, cache = self.midlayer(self.embed_tokens(ids), hidden, cache, mask)
            ids = ids.roll(-1, 1)
            losses.append(F.cross_entropy(self.lm_head(hidden).flatten(0, 1), ids.flatten()))
        return sum(losses) / self.steps

    def forward(self, ids, target_hidden):
        hidden = self.fc(target_hidden)
        if self.gradient_checkpointing and self.training and CHECKPOINTED == "loop":
            return checkpoint(self.draft, ids, hidden, use_reentrant=self.use_reentrant)
        return self.draft(ids, hidden)


def make():
    torch.manual_seed(0)
    return DraftModel(), {"ids": torch.randint(24, (2, 10)), "target_hidden": torch.randn(2, 10, 16)}


def symptom():
    return gradients(make)


if __name__ == "__main__":
    train(make)
