"""A loss in checkpointed chunks sums the means of the chunks: it is as many times too large as there are chunks.

Each chunk divides by its own tokens, and nothing divides the sum by all.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import gradients, train

FAULT = {
    "source": "https://github.com/NVIDIA-NeMo/Automodel/issues/3803",
    "kind": "loss and tiles",
    "saw": "with reduction='mean' the chunked loss is num_chunks times too big",
    "right": "chunks are weighted by their tokens",
    "cause": ["loss differs", "expected the loss", "too large"],
}
MENDED = False


class ChunkedCrossEntropy(nn.Module):
    def __init__(self, chunk_len=4, ignore_index=-100):
        super().__init__()
        self.chunk_len = chunk_len
        self.ignore_index = ignore_index

    def one(self, hidden, head, labels, reduction):
        return nn.functional.cross_entropy(head(hidden), labels, ignore_index=self.ignore_index, reduction=reduction)

    def forward(self, hidden, head, labels, reduction="mean"):
        if self.chunk_len is None:
            return self.one(hidden, head, labels, reduction)
        loss = 0.0
        tokens = (labels != self.ignore_index).sum()
        for part, wanted in zip(hidden.split(self.chunk_len), labels.split(self.chunk_len), strict=True):
            chunk = checkpoint(self.one, part, head, wanted, "sum" if MENDED else reduction, use_reentrant=False)
            loss = loss + (chunk / tokens if MENDED else chunk)
        return loss


class Model(nn.Module):
    def __init__(self, width=16, vocabulary=32):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)
        self.loss = ChunkedCrossEntropy()

    def forward(self, tokens, labels):
        hidden = self.rnn(self.embedding(tokens))[0]
        return self.loss(hidden.flatten(0, 1), self.head, labels.flatten())


def make():
    torch.manual_seed(0)
    tokens = torch.arange(24).reshape(2, 12)
    labels = tokens.roll(-1, 1)
    labels[:, -1] = -100
    return Model(), {"tokens": tokens, "labels": labels}


def off(model):
    model.loss.chunk_len = None


def switch(model, mode):
    model.loss.chunk_len = 4 if mode else None


MODES = ("non_reentrant",)


def symptom():
    return gradients(make, off)


if __name__ == "__main__":
    train(make)
