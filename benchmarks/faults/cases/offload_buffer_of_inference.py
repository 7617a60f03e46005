"""The buffer of an offloading checkpoint is first made in an evaluation, under inference mode.

It is made lazily and used again and again. What is made under inference_mode may not be written outside of it, so
that the first step of training raises.
"""

from collections import defaultdict
from typing import ClassVar

import torch
from torch import nn

from benchmarks.faults.script import Switched, cured, error, loss_of, train

FAULT = {
    "source": "https://github.com/unslothai/unsloth-zoo/commit/0abca4bed37c68ca1c81eb964aff04dfc409309f",
    "kind": "mode",
    "saw": "RuntimeError: Inplace update to inference tensor outside InferenceMode is not allowed",
    "right": "the buffer is made with inference mode off",
    "cause": ["inference_mode", "inference mode", "inference tensor"],
    "cure": "wrap",
}
MENDED = False


class Buffer:
    """A tensor for one activation, which goes back to the pool with whoever holds this."""

    free: ClassVar = defaultdict(list)

    def __init__(self, x):
        self.pool = Buffer.free[x.shape, x.dtype]
        if not self.pool:
            with torch.inference_mode(False if MENDED else torch.is_inference_mode_enabled()):
                self.pool.append(torch.empty(x.shape, dtype=x.dtype))
        self.tensor = self.pool.pop()

    def __del__(self):
        self.pool.append(self.tensor)


class Offloaded(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, layer, x):
        ctx.layer, ctx.kept = layer, Buffer(x)
        ctx.kept.tensor.copy_(x)
        with torch.no_grad():
            return layer(x)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, gradient):
        x = ctx.kept.tensor.clone().requires_grad_()
        with torch.enable_grad():
            y = ctx.layer(x)
        torch.autograd.backward(y, gradient)
        return None, x.grad


class Layer(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.self_attn = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, x):
        y = self.norm(x)
        return x + self.self_attn(y, y, y, need_weights=False)[0]


class Model(Switched):
    def __init__(self, width=16):
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))
        self.head = nn.Linear(width, 1)

    def forward(self, x, y):
        h = self.embed(x)
        for layer in self.layers:
            h = Offloaded.apply(layer, h) if self.gradient_checkpointing else layer(h)
        return nn.functional.mse_loss(self.head(h).mean(1), y)


def make():
    torch.manual_seed(0)
    model, batch = Model(), {"x": torch.rand(2, 6, 4), "y": torch.rand(2, 1)}
    cured(model)
    model.eval()
    with torch.inference_mode():
        print("loss before training", loss_of(model(**batch)).item())
    return model.train(), batch


def symptom():
    return error(lambda: train(make, steps=1))


if __name__ == "__main__":
    train(make)
