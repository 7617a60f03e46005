"""A chunked function returns log-probabilities and entropies; its backward forgets the gradient of the second.

An entropy bonus is part of the loss, and trains nothing.
"""

import torch
from torch import nn

from benchmarks.faults.script import gradients, train

FAULT = {
    "source": "https://github.com/huggingface/trl/pull/6625",
    "kind": "loss and tiles",
    "saw": "a bonus on the entropy changes the loss, but no gradient, on the chunked path",
    "right": "the backward adds what comes from the entropy",
    "cause": ["entropy", "second output", "outputs of", "backward ignores"],
    "cure": "",
    "held_out": True,
}
MENDED = False


class ChunkedLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, targets, chunk):
        logprobs, entropies = [], []
        for rows, wanted in zip(hidden.split(chunk), targets.split(chunk), strict=True):
            log_p = (rows @ weight.T).log_softmax(-1)
            logprobs.append(log_p.gather(-1, wanted[:, None]).squeeze(-1))
            entropies.append(-(log_p.exp() * log_p).sum(-1))
        ctx.save_for_backward(hidden, weight, targets)
        ctx.chunk = chunk
        return torch.cat(logprobs), torch.cat(entropies)

    @staticmethod
    def backward(ctx, grad_logprobs, grad_entropy):
        hidden, weight, targets = ctx.saved_tensors
        grad_hidden, grad_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        for start in range(0, len(hidden), ctx.chunk):
            rows = slice(start, start + ctx.chunk)
            log_p = (hidden[rows] @ weight.T).log_softmax(-1)
            chosen = nn.functional.one_hot(targets[rows], len(weight))
            grad_logits = (chosen - log_p.exp()) * grad_logprobs[rows, None]
            if MENDED:
                entropy = -(log_p.exp() * log_p).sum(-1, keepdim=True)
                grad_logits = grad_logits - log_p.exp() * (log_p + entropy) * grad_entropy[rows, None]
            grad_hidden[rows] = grad_logits @ weight
            grad_weight += grad_logits.T @ hidden[rows]
        return grad_hidden, grad_weight, None, None


class Policy(nn.Module):
    def __init__(self, dim=16, vocabulary=24):
        super().__init__()
        self.body = nn.Sequential(nn.Embedding(vocabulary, dim), nn.Linear(dim, dim), nn.Tanh())
        self.lm_head = nn.Linear(dim, vocabulary, bias=False)
        self.chunk = 4

    def forward(self, ids, advantages):
        hidden, targets = self.body(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()
        if self.chunk:
            logprobs, entropy = ChunkedLogProbs.apply(hidden, self.lm_head.weight, targets, self.chunk)
        else:
            log_p = self.lm_head(hidden).log_softmax(-1)
            logprobs, entropy = log_p.gather(-1, targets[:, None]).squeeze(-1), -(log_p.exp() * log_p).sum(-1)
        return -(advantages.flatten() * logprobs).mean() - 0.1 * entropy.mean()


def off(model):
    model.chunk = None


def switch(model, mode):
    model.chunk = None if mode is None else 4


def make():
    torch.manual_seed(0)
    return Policy(), {"ids": torch.randint(24, (2, 8)), "advantages": torch.randn(2, 7)}


def symptom():
    return gradients(make, off)


if __name__ == "__main__":
    train(make)
