"""A wrapper looks for attention by the names that it knows, and most layers of a hybrid model have another mixer.

Linear attention is called `linear_attn`: three layers of four keep all that their mixers make.
"""

from functools import partial

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper, checkpoint_wrapper
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import forwards, train

FAULT = {
    "source": "https://github.com/NVIDIA-NeMo/Automodel/commit/d8c354b0662e0cc489d715e586e6e3c69fe2ab33",
    "kind": "never checkpointed",
    "saw": "a peak of 176 GiB at long context: the linear attention of 48 of 64 layers is not checkpointed",
    "right": "every mixer is checkpointed, by whatever name",
    "cause": ["linear_attn", "not checkpointed", "no recompute", "never recomputed"],
    "cure": "wrap",
}
MENDED = False
MIXERS = ("self_attn", "attention", "attn", "linear_attn") if MENDED else ("self_attn", "attention", "attn")


class SelfAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))


class GatedDeltaNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.decay, self.out = nn.Linear(width, 3 * width), nn.Linear(width, 1), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k, decay = F.silu(q), F.normalize(k, dim=-1), torch.sigmoid(self.decay(x))
        state, outputs = x.new_zeros(len(x), x.shape[-1], x.shape[-1]), []
        for t in range(x.shape[1]):
            state = decay[:, t, :, None] * state + k[:, t, :, None] * v[:, t, None]
            outputs.append((q[:, t, None] @ state).squeeze(1))
        return self.out(torch.stack(outputs, 1))


class HybridLayer(nn.Module):
    def __init__(self, index, width=16):
        super().__init__()
        self.full = index % 4 == 3
        if self.full:
            self.self_attn = SelfAttention(width)
        else:
            self.linear_attn = GatedDeltaNet(width)
        self.norm, self.mlp = nn.LayerNorm(width), nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU())
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        mixer = self.self_attn if self.full else self.linear_attn
        x = x + mixer(self.norm(x))
        return x + self.down(self.mlp(x))


class HybridModel(nn.Module):
    def __init__(self, depth=4):
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.layers = nn.ModuleList(HybridLayer(index) for index in range(depth))
        self.lm_head = nn.Linear(16, 32)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.lm_head(x).flatten(0, 1), ids.roll(-1, 1).flatten())


def apply_checkpointing(model):
    for layer in model.layers:
        for name in MIXERS:
            if hasattr(layer, name):
                setattr(layer, name, checkpoint_wrapper(getattr(layer, name)))
                break
        layer.mlp = checkpoint_wrapper(layer.mlp)


def make():
    torch.manual_seed(0)
    model = HybridModel()
    apply_checkpointing(model)
    return model, {"ids": torch.randint(32, (2, 5))}


def off(model):
    switch(model, None)


def switch(model, mode):
    for module in model.modules():
        if isinstance(module, CheckpointWrapper):
            module.checkpoint_fn = directly if mode is None else partial(checkpoint, use_reentrant=False)


def directly(function, *args, **kwargs):
    return function(*args, **kwargs)


MODES = ["non_reentrant"]


def symptom():
    return forwards(make, lambda module: isinstance(module, SelfAttention | GatedDeltaNet), right=2)


if __name__ == "__main__":
    train(make)
