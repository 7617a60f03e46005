"""A cross entropy writes its gradient over the logits, and a second loss on them reads it as logits.

It writes past autograd's version counter, as a kernel does, so that nothing tells the other loss.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, gradients, train

FAULT = {
    "source": "https://github.com/unslothai/unsloth/issues/5002",
    "kind": "loss and tiles",
    "saw": "the backward of the cross entropy overwrites the logits that were saved",
    "right": "the gradient is a tensor of its own",
    "cause": ["overwrit", "in place", "in-place", "writes into", "logits"],
    "cure": "",
}
MENDED = False


class FusedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, labels):
        logsumexp = logits.logsumexp(-1)
        ctx.save_for_backward(logits, logsumexp, labels)
        return (logsumexp - logits.gather(-1, labels[..., None]).squeeze(-1)).mean()

    @staticmethod
    def backward(ctx, grad):
        logits, logsumexp, labels = ctx.saved_tensors
        target = logits.clone() if MENDED else logits.data
        target.sub_(logsumexp[..., None]).exp_()
        target.scatter_add_(-1, labels[..., None], -torch.ones_like(logsumexp)[..., None])
        return target.mul_(grad / labels.numel()), None


class DecoderLayer(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.qkv_proj, self.o_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv_proj(x).chunk(3, -1)
        return x + self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True))


class CausalLM(Switched):
    loss = FusedCrossEntropy.apply

    def __init__(self):
        super().__init__()
        self.embed_tokens, self.lm_head = nn.Embedding(32, 16), nn.Linear(16, 32, bias=False)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(2))

    def forward(self, ids, labels):
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.gradient_checkpointing else layer(x)
        logits = self.lm_head(x)
        z_loss = logits.logsumexp(-1).square().mean()
        return type(self).loss(logits, labels) + 0.1 * z_loss


def make():
    torch.manual_seed(0)
    ids = torch.randint(32, (2, 8))
    return CausalLM(), {"ids": ids, "labels": ids.roll(-1, 1)}


def symptom():
    def exact(model):
        model.__class__ = type("Exact", (CausalLM,), {"loss": staticmethod(plain)})

    return gradients(make, exact)


def plain(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


if __name__ == "__main__":
    train(make)
