"""The backward of a chunked cross entropy writes the gradient over the logits that it was given.

It recomputes the loss of one chunk at a time and stores the chunk's gradient in the saved logits. Another loss on the
same logits has saved them too.
"""

import torch
from torch import nn

from benchmarks.faults.script import cured, error, loss_of, train

FAULT = {
    "source": "https://github.com/modelscope/ms-swift/issues/10129",
    "kind": "loss and tiles",
    "saw": "a variable needed for gradient computation has been modified by an inplace operation",
    "right": "the gradient is a tensor of its own, filled chunk by chunk",
    "cause": ["in place", "in-place", "inplace", "overwrit"],
    "cure": "",
    "held_out": True,
}
MENDED = False


class ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, labels, chunk):
        ctx.save_for_backward(logits, labels)
        ctx.chunk = chunk
        parts = zip(logits.split(chunk), labels.split(chunk), strict=True)
        return torch.cat([nn.functional.cross_entropy(part, wanted, reduction="none") for part, wanted in parts])

    @staticmethod
    def backward(ctx, upstream):
        logits, labels = ctx.saved_tensors
        result = torch.empty_like(logits) if MENDED else logits
        for start in range(0, len(logits), ctx.chunk):
            rows = slice(start, start + ctx.chunk)
            with torch.enable_grad():
                part = logits[rows].detach().clone().requires_grad_()
                loss = nn.functional.cross_entropy(part, labels[rows], reduction="none")
            result[rows] = torch.autograd.grad(loss, part, upstream[rows])[0]
        return result, None, None


class CausalLM(nn.Module):
    def __init__(self, dim=16, vocabulary=32):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.lm_head = nn.Linear(dim, vocabulary, bias=False)
        self.chunk = 5

    def forward(self, input_ids, labels):
        logits = self.lm_head(self.rnn(self.embed_tokens(input_ids))[0]).flatten(0, 1)
        z_loss = logits.logsumexp(-1).square().mean()
        if self.chunk:
            losses = ChunkedCrossEntropy.apply(logits, labels.flatten(), self.chunk)
        else:
            losses = nn.functional.cross_entropy(logits, labels.flatten(), reduction="none")
        return losses.mean() + 1e-2 * z_loss


def off(model):
    model.chunk = None


def switch(model, mode):
    model.chunk = None if mode is None else 5


def make():
    torch.manual_seed(0)
    ids = torch.randint(32, (2, 10))
    return CausalLM(), {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}


def step():
    model, batch = make()
    cured(model)
    loss_of(model(**batch)).backward()


def symptom():
    return error(step)


if __name__ == "__main__":
    train(make)
