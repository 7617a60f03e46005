"""Blocks of an audio encoder return their attention too; the checkpointed call takes the pair for the hidden state.

The plain call unpacks `x, attn = block(x)`. With checkpointing on, the next block gets a tuple.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import cured, error, loss_of, train

FAULT = {
    "source": "https://github.com/mlfoundations/open_clip/commit/040d2bcab1ce8e3f71fbeafadc013c510d4adb47",
    "kind": "arguments lost",
    "saw": "the audio encoder fails as soon as checkpointing is on: a tuple has no attribute of a tensor",
    "right": "the checkpointed call unpacks what the plain call unpacks",
    "cause": ["tuple", "unpack"],
    "cure": "wrap",
    "held_out": True,
}
MENDED = False


class SwinBlock(nn.Module):
    def __init__(self, dim, window):
        super().__init__()
        self.window = window
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        windows = self.norm1(x).unflatten(1, (-1, self.window))
        q, k, v = self.qkv(windows).chunk(3, -1)
        attn = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        x = x + self.proj(attn @ v).flatten(1, 2)
        return x + self.mlp(self.norm2(x)), attn


class BasicLayer(nn.Module):
    def __init__(self, dim, depth):
        super().__init__()
        self.blocks = nn.ModuleList(SwinBlock(dim, 4) for _ in range(depth))
        self.downsample = nn.Linear(2 * dim, dim)
        self.use_checkpoint = False

    def forward(self, x):
        attns = []
        for block in self.blocks:
            if self.use_checkpoint:
                if MENDED:
                    x, attn = checkpoint(block, x, use_reentrant=False)
                    attns.append(attn)
                else:
                    x = checkpoint(block, x)
            else:
                x, attn = block(x)
                attns.append(attn)
        return self.downsample(x.unflatten(1, (-1, 2)).flatten(2)), attns


class HTSAT(nn.Module):
    def __init__(self, mels=8, dim=16):
        super().__init__()
        self.patch_embed = nn.Conv1d(mels, dim, 2, 2)
        self.layers = nn.ModuleList(BasicLayer(dim, 2) for _ in range(2))
        self.head = nn.Linear(dim, 5)

    def set_grad_checkpointing(self, enable=True):
        for layer in self.layers:
            layer.use_checkpoint = enable

    def forward(self, mel, labels):
        x = self.patch_embed(mel).transpose(1, 2)
        for layer in self.layers:
            x, _ = layer(x)
        return nn.functional.cross_entropy(self.head(x.mean(1)), labels)


def off(model):
    model.set_grad_checkpointing(False)


def switch(model, mode):
    model.set_grad_checkpointing(mode is not None)


def make():
    torch.manual_seed(0)
    model = HTSAT()
    model.set_grad_checkpointing()
    return model, {"mel": torch.randn(3, 8, 32), "labels": torch.tensor([0, 2, 4])}


def step():
    model, batch = make()
    cured(model)
    loss_of(model(**batch)).backward()


def symptom():
    return error(step)


if __name__ == "__main__":
    train(make)
