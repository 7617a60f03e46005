"""A function of the chunked loss returns a gradient that its inner backward has already written.

`torch.autograd.backward` adds to `lm_head.grad`, and what is returned for that input is added once more. An earlier
chunk's gradient is returned along with it.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import gradients, train

FAULT = {
    "source": "https://github.com/unslothai/unsloth-zoo/commit/d491423a7822cbd150924c7777af34283af06a5e",
    "kind": "loss and tiles",
    "saw": "the gradient of lm_head is exactly twice as large, and more with several chunks",
    "right": "torch.autograd.grad, which writes into no `.grad`",
    "cause": ["twice as large", "added twice", "accumulated twice", "autograd.backward"],
}
MENDED = False


class ChunkedLogProbs(torch.autograd.Function):
    """Log probabilities of the labels; the logits are made again in the backward."""

    @staticmethod
    def forward(ctx, hidden, weight, labels):
        ctx.save_for_backward(hidden, weight, labels)
        return ChunkedLogProbs.selected(hidden, weight, labels)

    @staticmethod
    def selected(hidden, weight, labels):
        return (hidden @ weight.T).log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)

    @staticmethod
    def backward(ctx, gradient):
        hidden, weight, labels = ctx.saved_tensors
        hidden = hidden.detach().requires_grad_()
        with torch.enable_grad():
            output = ChunkedLogProbs.selected(hidden, weight, labels)
        if MENDED:
            inputs = [hidden, weight] if weight.requires_grad else [hidden]
            of_hidden, of_weight = (*torch.autograd.grad(output, inputs, gradient), None)[:2]
        else:
            torch.autograd.backward(output, gradient)
            of_hidden, of_weight = hidden.grad, weight.grad
        return of_hidden, of_weight, None


class Policy(nn.Module):
    def __init__(self, width=16, vocabulary=32):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 2, 32, 0.0, batch_first=True) for _ in range(2))
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.checkpoints = True

    def forward(self, input_ids, rewards):
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpoints else layer(x)
        loss = 0.0
        for hidden, labels, reward in zip(x.chunk(2), input_ids.roll(-1, 1).chunk(2), rewards.chunk(2), strict=True):
            run = ChunkedLogProbs.apply if self.checkpoints else ChunkedLogProbs.selected
            loss = loss - (run(hidden, self.lm_head.weight, labels) * reward).mean()
        return loss


def make():
    torch.manual_seed(0)
    return Policy(), {"input_ids": torch.arange(24).reshape(2, 12), "rewards": torch.tensor([[1.0], [0.5]])}


def off(model):
    model.checkpoints = False


def switch(model, mode):
    model.checkpoints = mode is not None


MODES = ("non_reentrant",)


def symptom():
    return gradients(make, off)


if __name__ == "__main__":
    train(make)
