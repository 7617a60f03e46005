"""A lambda looks its layer up when it is recomputed: each recompute runs the last layer of the loop.

All layers have the same shapes, so that nothing raises; the gradients of all go to the last one.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import gradients, train

FAULT = {
    "source": "https://github.com/bghira/SimpleTuner/commit/5e0e77bb733bdec20336b89d478552043d435ed7",
    "kind": "late binding",
    "saw": "Z-Image may recompute another layer than it ran",
    "right": "each recompute runs the layer of its forward",
    "cause": ["CKPT012", "`layer`", "in their place"],
    "cure": "wrap",
}
MENDED = False


class ZImageTransformerBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.attention_norm = nn.RMSNorm(dim)
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)
        self.adaLN_modulation = nn.Linear(dim, 2 * dim)

    def forward(self, x, mask, freqs, adaln_input):
        scale, gate = self.adaLN_modulation(adaln_input).unsqueeze(1).chunk(2, -1)
        q, k, v = self.to_qkv(self.attention_norm(x) * (1 + scale)).chunk(3, -1)
        return x + gate.tanh() * self.to_out(nn.functional.scaled_dot_product_attention(q * freqs, k * freqs, v, mask))


class ZImageTransformer2DModel(nn.Module):
    _supports_gradient_checkpointing = True

    def __init__(self, dim=16):
        super().__init__()
        self.t_embedder = nn.Linear(1, dim)
        self.x_embedder = nn.Linear(4, dim)
        self.layers = nn.ModuleList(ZImageTransformerBlock(dim) for _ in range(3))
        self.final_layer = nn.Linear(dim, 4)
        self.gradient_checkpointing = False

    def enable_gradient_checkpointing(self):
        self.gradient_checkpointing = True

    def disable_gradient_checkpointing(self):
        self.gradient_checkpointing = False

    def forward(self, latents, timestep, target):
        x, temb = self.x_embedder(latents), self.t_embedder(timestep)
        freqs = torch.linspace(0.5, 1.5, x.shape[1]).unsqueeze(-1)
        for layer in self.layers:
            if torch.is_grad_enabled() and self.gradient_checkpointing:
                run = layer if MENDED else lambda *args: layer(*args)
                x = checkpoint(run, x, None, freqs, temb, use_reentrant=False)
            else:
                x = layer(x, None, freqs, temb)
        return nn.functional.mse_loss(self.final_layer(x), target)


def make():
    torch.manual_seed(0)
    model = ZImageTransformer2DModel()
    model.enable_gradient_checkpointing()
    return model, {"latents": torch.rand(2, 9, 4), "timestep": torch.rand(2, 1), "target": torch.rand(2, 9, 4)}


def off(model):
    model.disable_gradient_checkpointing()


MODES = ("non_reentrant",)


def symptom():
    return gradients(make, off)


if __name__ == "__main__":
    train(make)
