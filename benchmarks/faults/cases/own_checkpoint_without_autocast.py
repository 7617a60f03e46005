"""A checkpoint function of one's own recomputes in float32 what autocast ran in bfloat16.

The backward is called outside of the autocast region, and enters none: values, and with them gradients, are not those
of the forward.
"""

import torch
from torch import nn

from benchmarks.faults.script import gradients, train

FAULT = {
    "source": "https://github.com/NVIDIA/TransformerEngine/commit/7c4887b218f55b546d231353c5aee554c6e2bdbc",
    "kind": "precision",
    "saw": "recompute ignores torch.autocast: it runs in another precision than the forward",
    "right": "the backward enters autocast as it was in the forward",
    "cause": ["autocast", "precision"],
    "cure": "",
    "held_out": True,
}
MENDED = False


class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *tensors):
        ctx.function = function
        if MENDED:
            ctx.cast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        ctx.rng = torch.get_rng_state()
        ctx.save_for_backward(*tensors)
        with torch.no_grad():
            return function(*tensors)

    @staticmethod
    def backward(ctx, *gradients):
        tensors = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in ctx.saved_tensors]
        after = torch.get_rng_state()
        torch.set_rng_state(ctx.rng)
        if MENDED:
            with torch.enable_grad(), torch.autocast("cpu", enabled=ctx.cast[0], dtype=ctx.cast[1]):
                output = ctx.function(*tensors)
        else:
            with torch.enable_grad():
                output = ctx.function(*tensors)
        torch.set_rng_state(after)
        torch.autograd.backward(output, *gradients)
        return None, *(tensor.grad for tensor in tensors)


class TransformerLayer(nn.Module):
    def __init__(self, hidden, heads=2):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.fc1, self.fc2 = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = (q @ k.transpose(-1, -2) / 3).softmax(-1) @ v
        x = x + self.dropout(self.proj(attended.transpose(1, 2).flatten(2)))
        return x + self.fc2(nn.functional.gelu(self.fc1(self.norm2(x))))


class Encoder(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.project = nn.Linear(6, hidden)
        self.layers = nn.ModuleList(TransformerLayer(hidden) for _ in range(2))
        self.out = nn.Linear(hidden, 6)
        self.recompute = True

    def forward(self, series):
        with torch.autocast("cpu", torch.bfloat16):
            x = self.project(series[:, :-1]).float()
            for layer in self.layers:
                x = Recompute.apply(layer, x) if self.recompute else layer(x)
            predicted = self.out(x)
        return nn.functional.mse_loss(predicted.float(), series[:, 1:])


def off(model):
    model.recompute = False


def switch(model, mode):
    model.recompute = mode is not None


def make():
    torch.manual_seed(0)
    return Encoder(), {"series": torch.randn(4, 10, 6)}


def symptom():
    return gradients(make, off)


if __name__ == "__main__":
    train(make)
