"""Attention writes its keys into a cache at an index that it then advances, inside of a checkpoint.

The recompute finds the index advanced: it writes behind what the forward wrote, and attends to more positions.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import error, train

FAULT = {
    "source": "https://github.com/NVlabs/LongLive/issues/16",
    "kind": "cache written",
    "saw": "training through the cache fails with checkpointing, and needs a flag for the recompute",
    "right": "blocks return what is to be cached, and their caller writes it once they are done",
    "cause": ["cache", "past state", "written twice", "in place"],
    "cure": "",
}
MENDED = False
WRITTEN = "after the block" if MENDED else "in the block"
WIDTH, FRAMES = 16, 6


class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, kv_cache, start):
        q, k, v = self.qkv(x).chunk(3, -1)
        start = start if MENDED else kv_cache["end_index"]
        end = start + x.shape[1]
        update = (start, end, k.detach(), v.detach())
        if WRITTEN == "in the block":
            write(kv_cache, update)
        keys = torch.cat([kv_cache["k"][:, :start], k], 1)
        values = torch.cat([kv_cache["v"][:, :start], v], 1)
        return self.out((q @ keys.transpose(1, 2)).softmax(-1) @ values), update


def write(kv_cache, update):
    start, end, k, v = update
    kv_cache["k"][:, start:end], kv_cache["v"][:, start:end] = k, v
    kv_cache["end_index"] = end


class CausalWanBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.self_attn = CausalSelfAttention()
        self.ffn = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x, kv_cache, start):
        mixed, update = self.self_attn(self.norm(x), kv_cache, start)
        x = x + mixed
        return x + self.ffn(x), update


class CausalWanModel(nn.Module):
    gradient_checkpointing = True

    def __init__(self):
        super().__init__()
        self.patch_embedding = nn.Linear(8, WIDTH)
        self.blocks = nn.ModuleList(CausalWanBlock() for _ in range(2))
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, video):
        """Predict the next of each chunk of two frames, from the cache of those before."""
        size = len(video), FRAMES, WIDTH
        caches = [{"k": torch.zeros(size), "v": torch.zeros(size), "end_index": 0} for _ in self.blocks]
        losses = []
        for first in range(0, FRAMES - 2, 2):
            x = self.patch_embedding(video[:, first : first + 2])
            for block, kv_cache in zip(self.blocks, caches, strict=True):
                if torch.is_grad_enabled() and self.gradient_checkpointing:
                    x, update = checkpoint(block, x, kv_cache, first, use_reentrant=False)
                else:
                    x, update = block(x, kv_cache, first)
                if WRITTEN == "after the block":
                    write(kv_cache, update)
            losses.append((self.head(x) - video[:, first + 2 : first + 4]).square().mean())
        return sum(losses)


def make():
    torch.manual_seed(0)
    return CausalWanModel(), {"video": torch.randn(2, FRAMES, 8)}


def off(model):
    model.gradient_checkpointing = False


def switch(model, mode):
    model.gradient_checkpointing = mode is not None


MODES = ["non_reentrant"]


def symptom():
    return error(lambda: train(make, steps=2))


if __name__ == "__main__":
    train(make)
