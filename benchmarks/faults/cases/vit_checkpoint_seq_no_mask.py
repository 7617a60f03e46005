"""The branch that checkpoints a vision transformer hands its blocks no attention mask.

The plain loop calls `block(x, mask=mask)`; the other goes through a helper that runs a sequence of modules, whose
only argument is the hidden state. The model is causal without checkpointing, and sees everything with it.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import gradients, train

FAULT = {
    "source": "https://github.com/lightly-ai/lightly/issues/2049",
    "kind": "arguments lost",
    "saw": "a masked transformer gives the output of the unmasked one as soon as checkpointing is on",
    "right": "each checkpointed block gets the mask",
    "cause": ["mask"],
    "cure": "wrap",
    "held_out": True,
}
MENDED = False


def checkpoint_seq(modules, x):
    for module in modules:
        x = checkpoint(module, x, use_reentrant=False)
    return x


class Block(nn.Module):
    def __init__(self, dim, heads=2):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x, mask=None):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.proj(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class MaskedCausalVisionTransformer(nn.Module):
    def __init__(self, dim=16, patch=4, depth=3):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, dim, patch, patch)
        self.pos_embed = nn.Parameter(0.1 * torch.randn(1, 16, dim))
        self.blocks = nn.Sequential(*(Block(dim) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 3 * patch * patch)
        self.grad_checkpointing = False

    def set_grad_checkpointing(self, enable=True):
        self.grad_checkpointing = enable

    def forward_features(self, images, mask):
        x = self.patch_embed(images).flatten(2).transpose(1, 2) + self.pos_embed
        if self.grad_checkpointing and not torch.jit.is_scripting():
            if MENDED:
                for block in self.blocks:
                    x = checkpoint(block, x, mask=mask, use_reentrant=False)
            else:
                x = checkpoint_seq(self.blocks, x)
        else:
            for block in self.blocks:
                x = block(x, mask=mask)
        return self.norm(x)

    def forward(self, images, mask):
        predicted = self.head(self.forward_features(images, mask))
        patches = nn.functional.unfold(images, 4, stride=4).transpose(1, 2)
        return nn.functional.mse_loss(predicted[:, :-1], patches[:, 1:])


def off(model):
    model.set_grad_checkpointing(False)


def switch(model, mode):
    model.set_grad_checkpointing(mode is not None)


def make():
    torch.manual_seed(0)
    model = MaskedCausalVisionTransformer()
    model.set_grad_checkpointing()
    return model, {"images": torch.randn(2, 3, 16, 16), "mask": torch.ones(16, 16, dtype=torch.bool).tril()}


def symptom():
    return gradients(make, off)


if __name__ == "__main__":
    train(make)
