"""Only the adapters of a diffusion model train, its base stays in evaluation mode, and nothing is checkpointed.

`from_pretrained` returns a model in evaluation mode, and every block was guarded by `self.training`: what the backward
pass needs is recorded all the same, and all of it is kept.
"""

import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import memory, train

FAULT = {
    "source": "https://github.com/huggingface/diffusers/pull/9878",
    "kind": "mode",
    "saw": "checkpointing was switched on, and memory did not fall",
    "right": "the guard asks torch.is_grad_enabled() and not self.training",
    "cause": ["CKPT107", "evaluation mode", "eval mode", "eval()", "self.training", "training mode"],
    "cure": "wrap",
}
MENDED = False
MODES = ("non_reentrant",)


class BasicTransformerBlock(nn.Module):
    def __init__(self, width, heads=2):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.to_q, self.to_k, self.to_v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.net = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden_states):
        normed = self.norm1(hidden_states)
        q, k, v = (
            each(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.to_q, self.to_k, self.to_v)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        hidden_states = hidden_states + mixed
        return hidden_states + self.net(self.norm2(hidden_states))


class PixTransformer(nn.Module):
    _supports_gradient_checkpointing = True

    def __init__(self, width=32):
        super().__init__()
        self.x_embedder, self.proj_out = nn.Linear(4, width), nn.Linear(width, 4)
        self.transformer_blocks = nn.ModuleList(BasicTransformerBlock(width) for _ in range(4))
        self.gradient_checkpointing = False

    def enable_gradient_checkpointing(self):
        self.gradient_checkpointing = True

    def forward(self, hidden_states):
        hidden_states = self.x_embedder(hidden_states)
        for block in self.transformer_blocks:
            if (torch.is_grad_enabled() if MENDED else self.training) and self.gradient_checkpointing:
                hidden_states = checkpoint(block, hidden_states, use_reentrant=False)
            else:
                hidden_states = block(hidden_states)
        return self.proj_out(hidden_states)


def from_pretrained():
    torch.manual_seed(0)
    return PixTransformer().eval()


def make():
    model = from_pretrained()
    model.requires_grad_(False)
    inject_adapter_in_model(LoraConfig(r=2, target_modules=["to_q", "to_v"]), model)
    model.enable_gradient_checkpointing()
    return model, {"hidden_states": torch.randn(2, 16, 4)}


def off(model):
    model.gradient_checkpointing = False


def switch(model, mode):
    model.gradient_checkpointing = mode is not None


def symptom():
    return memory(make, off)


if __name__ == "__main__":
    train(make)
