"""Tokens per expert are counted in the forward of a layer, which runs twice: metrics and biases see double counts.

The count is a buffer that is added to without gradient. Layers that are not checkpointed count once.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, cured, loss_of, number, train

FAULT = {
    "source": "https://github.com/pytorch/torchtitan/pull/1593",
    "kind": "state twice",
    "saw": "tokens_per_expert is twice the number of tokens under full recompute",
    "right": "each token is counted once",
    "cause": ["tokens_per_expert"],
}
MENDED = False


class MoE(nn.Module):
    def __init__(self, dim, experts=4, top_k=2):
        super().__init__()
        self.top_k = top_k
        self.router = nn.Linear(dim, experts, bias=False)
        self.w1 = nn.Parameter(torch.randn(experts, dim, 2 * dim) / dim**0.5)
        self.w2 = nn.Parameter(torch.randn(experts, 2 * dim, dim) / dim**0.5)
        self.register_buffer("expert_bias", torch.zeros(experts))
        self.register_buffer("tokens_per_expert", torch.zeros(experts), persistent=False)

    def forward(self, x):
        scores = self.router(x).sigmoid()
        selected = (scores + self.expert_bias).topk(self.top_k, dim=-1).indices
        count = torch.bincount(selected.flatten(), minlength=len(self.w1)).float()
        with torch.no_grad():
            self.tokens_per_expert.add_(0 if MENDED else count)
        weights = torch.zeros_like(scores).scatter(-1, selected, scores.gather(-1, selected))
        each = torch.einsum("nef,efd->ned", torch.einsum("nd,edf->nef", x, self.w1).relu(), self.w2)
        return torch.einsum("ne,ned->nd", weights, each), count


class TransformerBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.attention_norm = nn.RMSNorm(dim)
        self.attention = nn.MultiheadAttention(dim, 2, batch_first=True)
        self.ffn_norm = nn.RMSNorm(dim)
        self.moe = MoE(dim)

    def forward(self, x):
        y = self.attention_norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        y, count = self.moe(self.ffn_norm(x).flatten(0, 1))
        return x + y.view_as(x), count


class Transformer(Switched):
    def __init__(self, dim=16, vocab_size=32):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab_size, dim)
        self.layers = nn.ModuleList(TransformerBlock(dim) for _ in range(2))
        self.output = nn.Linear(dim, vocab_size)

    def forward(self, tokens, labels):
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                x, count = checkpoint(layer, x, use_reentrant=False)
            else:
                x, count = layer(x)
            if MENDED:
                layer.moe.tokens_per_expert.add_(count)
        return nn.functional.cross_entropy(self.output(x).flatten(0, 1), labels.flatten())


def make():
    torch.manual_seed(0)
    ids = torch.arange(24).reshape(2, 12)
    return Transformer(), {"tokens": ids, "labels": ids.roll(-1, 1)}


def symptom():
    model, batch = make()
    cured(model)
    loss_of(model(**batch)).backward()
    return number("choices of 24 tokens counted in a layer", model.layers[0].moe.tokens_per_expert.sum().item(), 48)


if __name__ == "__main__":
    train(make)
