"""A checkpoint that offloads its input unpacks the output of the recompute as the one-tuple of a decoder layer.

Blocks of the vision tower return a tensor: unpacking goes over the first axis, and fails, or drops it where it has
length 1.
"""

import torch
from torch import nn

from benchmarks.faults.script import cured, error, loss_of, train

FAULT = {
    "source": "https://github.com/hiyouga/LLaMA-Factory/commit/2233b739fa06a82bd47acf32d4d6692fb7b41f22",
    "kind": "offload",
    "saw": "training with the offloaded checkpointer fails in the backward of vision towers",
    "right": "only tuples are unpacked",
    "cause": ["tuple", "unpack"],
    "cure": "",
    "held_out": True,
}
MENDED = False


class OffloadedCheckpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, hidden, *args):
        with torch.no_grad():
            outputs = function(hidden, *args)
        ctx.save_for_backward(hidden.to("cpu", non_blocking=True))
        ctx.function, ctx.args, ctx.device = function, args, hidden.device
        return outputs

    @staticmethod
    def backward(ctx, upstream):
        hidden = ctx.saved_tensors[0].to(ctx.device).detach().requires_grad_()
        with torch.enable_grad():
            if MENDED:
                output = ctx.function(hidden, *ctx.args)
                output = output[0] if isinstance(output, tuple) else output
            else:
                (output,) = ctx.function(hidden, *ctx.args)
        torch.autograd.backward(output, upstream)
        return None, hidden.grad, *(None for _ in ctx.args)


class VisionBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(dim), nn.MultiheadAttention(dim, 2, batch_first=True)

    def forward(self, x):
        normed = self.norm(x)
        return x + self.attn(normed, normed, normed, need_weights=False)[0]


class DecoderLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(dim), nn.Linear(dim, dim)

    def forward(self, x, positions):
        return (x + torch.tanh(self.mlp(self.norm(x + positions))).cumsum(1) / 4,)


class VisionLanguageModel(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.patches, self.embed = nn.Linear(12, dim), nn.Embedding(32, dim)
        self.visual_blocks = nn.ModuleList(VisionBlock(dim) for _ in range(2))
        self.layers = nn.ModuleList(DecoderLayer(dim) for _ in range(2))
        self.lm_head = nn.Linear(dim, 32)
        self.offloads = True

    def run(self, block, *args):
        return OffloadedCheckpoint.apply(block.__call__, *args) if self.offloads else block(*args)

    def forward(self, pixels, ids):
        image = self.patches(pixels)
        for block in self.visual_blocks:
            image = self.run(block, image)
        x = torch.cat([image, self.embed(ids)], 1)
        positions = torch.linspace(0, 1, x.size(1))[:, None]
        for layer in self.layers:
            x = self.run(layer, x, positions)[0]
        logits = self.lm_head(x[:, image.size(1) : -1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def off(model):
    model.offloads = False


def switch(model, mode):
    model.offloads = mode is not None


def make():
    torch.manual_seed(0)
    return VisionLanguageModel(), {"pixels": torch.randn(2, 4, 12), "ids": torch.randint(32, (2, 8))}


def step():
    model, batch = make()
    cured(model)
    loss_of(model(**batch)).backward()


def symptom():
    return error(step)


if __name__ == "__main__":
    train(make)
