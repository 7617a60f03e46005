"""A frozen base is left in evaluation mode, and its checkpointing asks for training mode: nothing is checkpointed.

Gradients flow through it to the adapter all the same, so that all of its activations are kept.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, memory, train

FAULT = {
    "source": "https://github.com/huggingface/diffusers/issues/9850",
    "kind": "mode",
    "saw": "the memory is that of a training without gradient checkpointing",
    "right": "the model checkpoints where gradients are computed",
    "cause": ["eval", "training mode", "CKPT107"],
    "cure": "wrap",
}
MENDED = False


class TransformerBlock(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn1 = nn.MultiheadAttention(width, 2, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden_states, temb):
        x = self.norm1(hidden_states) * (1 + temb)
        hidden_states = hidden_states + self.attn1(x, x, x, need_weights=False)[0]
        return hidden_states + self.ff(self.norm2(hidden_states))


class Transformer(Switched):
    def __init__(self, width=24, depth=4):
        super().__init__()
        self.proj_in, self.time = nn.Linear(8, width), nn.Linear(1, width)
        self.transformer_blocks = nn.ModuleList(TransformerBlock(width) for _ in range(depth))
        self.proj_out = nn.Linear(width, 8)

    def forward(self, hidden_states, timestep):
        hidden_states, temb = self.proj_in(hidden_states), self.time(timestep)[:, None]
        for block in self.transformer_blocks:
            if (torch.is_grad_enabled() if MENDED else self.training) and self.gradient_checkpointing:
                hidden_states = checkpoint(block, hidden_states, temb, use_reentrant=self.use_reentrant)
            else:
                hidden_states = block(hidden_states, temb)
        return self.proj_out(hidden_states)


class AdapterTraining(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = Transformer().requires_grad_(False).eval()
        self.adapter = nn.Sequential(nn.Linear(8, 4), nn.GELU(), nn.Linear(4, 8))

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None):
        self.base.gradient_checkpointing_enable(gradient_checkpointing_kwargs)

    def gradient_checkpointing_disable(self):
        self.base.gradient_checkpointing_disable()

    def train(self, mode=True):
        super().train(mode)
        self.base.eval()
        return self

    def forward(self, latents, timestep, noise):
        return (self.base(latents + self.adapter(latents), timestep) - noise).square().mean()


MODES = ["non_reentrant"]


def make():
    torch.manual_seed(0)
    latents = torch.randn(2, 16, 8)
    return AdapterTraining(), {"latents": latents, "timestep": torch.rand(2, 1), "noise": torch.randn(2, 16, 8)}


def symptom():
    return memory(make)


if __name__ == "__main__":
    train(make)
