"""The backward pass of a hand-written Function normalises B and C again, which it has saved normalised.

At checkpoint level 1 it rebuilds a part of the forward from what was saved, from the norm on; with a learned scale the
second norm is another.
"""

import torch
from torch import nn

from benchmarks.faults.script import gradients, train

FAULT = {
    "source": "https://github.com/state-spaces/mamba/pull/902",
    "kind": "state twice",
    "saw": "gradients were wrong at checkpoint level 1 where B and C are normalised",
    "right": "B and C are computed again from the projection, and normalised once",
    "cause": ["normali", "twice", "MixerFunction", "autograd.Function"],
    "cure": "",
}
MENDED = False
MODES = ("non_reentrant",)


def rms_norm(x, scale):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * scale


def scan(x, b, c):
    """Sum x b over time, and read it by c: (batch, time, width) and (batch, time, state) give (batch, time, width)."""
    return ((x.unsqueeze(-1) * b.unsqueeze(2)).cumsum(1) * c.unsqueeze(2)).sum(-1)


class MixerFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, projected, scale, checkpoint_lvl):
        raw_b, raw_c = projected.chunk(2, -1)
        b, c = rms_norm(raw_b, scale), rms_norm(raw_c, scale)
        gate = torch.sigmoid(x)
        y = scan(x * gate, b, c)
        ctx.checkpoint_lvl = checkpoint_lvl
        kept = () if MENDED else (b, c)
        ctx.save_for_backward(x, projected, scale, *((b, c, gate) if checkpoint_lvl == 0 else kept))
        return y

    @staticmethod
    def backward(ctx, gradient):
        x, projected, scale, *saved = ctx.saved_tensors
        raw_b, raw_c = projected.chunk(2, -1)
        if ctx.checkpoint_lvl == 0:
            b, c, gate = saved
        else:
            gate = torch.sigmoid(x)
            b, c = (raw_b, raw_c) if MENDED else saved
            b, c = rms_norm(b, scale), rms_norm(c, scale)
        gated = x * gate
        with torch.enable_grad():
            inner = [each.detach().requires_grad_() for each in (gated, b, c)]
            d_gated, d_b, d_c = torch.autograd.grad(scan(*inner), inner, gradient)
            outer = [each.detach().requires_grad_() for each in (raw_b, raw_c, scale)]
            normed = rms_norm(outer[0], outer[2]), rms_norm(outer[1], outer[2])
            d_raw_b, d_raw_c, d_scale = torch.autograd.grad(normed, outer, (d_b, d_c))
        d_x = d_gated * (gate + gated * (1 - gate))
        return d_x, torch.cat([d_raw_b, d_raw_c], -1), d_scale, None


class Mamba(nn.Module):
    def __init__(self, width, state=4):
        super().__init__()
        self.checkpoint_lvl = 1
        self.norm, self.in_proj, self.x_proj = (
            nn.LayerNorm(width),
            nn.Linear(width, width),
            nn.Linear(width, 2 * state),
        )
        self.bc_scale = nn.Parameter(torch.linspace(0.5, 1.5, state))
        self.out_proj = nn.Linear(width, width)

    def forward(self, hidden):
        x = self.in_proj(self.norm(hidden))
        mixed = MixerFunction.apply(x, self.x_proj(x), self.bc_scale, self.checkpoint_lvl)
        return hidden + self.out_proj(mixed)


def make():
    torch.manual_seed(0)
    return nn.Sequential(Mamba(12), Mamba(12)), {"input": torch.randn(2, 6, 12)}


def switch(model, mode):
    for mixer in model:
        mixer.checkpoint_lvl = 0 if mode is None else 1


def off(model):
    switch(model, None)


def symptom():
    return gradients(make, off)


if __name__ == "__main__":
    train(make, lr=0.01)
