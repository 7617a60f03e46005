"""A contrastive model's image tower is locked up to its stem: reentrant checkpoints give its blocks no gradient.

The text tower still trains, so that the loss goes down and nobody sees more than a warning.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import gradients, train

FAULT = {
    "source": "https://github.com/mlfoundations/open_clip/issues/573",
    "kind": "adapters",
    "saw": "a warning that no input has requires_grad=True, and a lower accuracy",
    "right": "checkpoints that are not reentrant",
    "cause": ["requires_grad", "reentrant"],
    "cure": "wrap",
}
MENDED = False


class ResidualAttentionBlock(nn.Module):
    def __init__(self, width, heads=2):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, q, k=None, v=None, attn_mask=None):
        x = self.ln_1(q)
        k = x if k is None else k
        v = x if v is None else v
        q = q + self.attn(x, k, v, need_weights=False, attn_mask=attn_mask)[0]
        return q + self.mlp(self.ln_2(q))


class Tower(nn.Module):
    grad_checkpointing = True

    def __init__(self, stem, width, depth=3):
        super().__init__()
        self.stem = stem
        self.resblocks = nn.ModuleList(ResidualAttentionBlock(width) for _ in range(depth))
        self.proj = nn.Linear(width, 8, bias=False)

    def forward(self, x, attn_mask=None):
        x = self.stem(x)
        for block in self.resblocks:
            if self.grad_checkpointing and not torch.jit.is_scripting():
                if MENDED:
                    x = checkpoint(block, x, None, None, attn_mask, use_reentrant=False)
                else:
                    x = checkpoint(block, x, None, None, attn_mask, use_reentrant=True)
            else:
                x = block(x, attn_mask=attn_mask)
        return F.normalize(self.proj(x.mean(1)), dim=-1)


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.visual = Tower(nn.Linear(12, 16), 16)
        self.visual.stem.requires_grad_(False)
        self.text = Tower(nn.Embedding(20, 16), 16)
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def set_grad_checkpointing(self, enable=True):
        self.visual.grad_checkpointing = self.text.grad_checkpointing = enable

    def forward(self, patches, tokens):
        causal = torch.full((tokens.shape[1],) * 2, float("-inf")).triu(1)
        logits = self.logit_scale.exp() * self.visual(patches) @ self.text(tokens, causal).T
        labels = torch.arange(len(logits))
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


def make():
    torch.manual_seed(0)
    return Clip(), {"patches": torch.randn(4, 9, 12), "tokens": torch.randint(20, (4, 6))}


def off(model):
    model.set_grad_checkpointing(False)


def symptom():
    return gradients(make, off)


if __name__ == "__main__":
    train(make)
