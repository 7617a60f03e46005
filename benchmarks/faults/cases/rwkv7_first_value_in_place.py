"""The first layer's value reaches the other layers by a write into a tensor that the layer was given.

A reentrant checkpoint runs the first layer without a graph, so that the tensor gets the values and not their history:
the other layers send no gradient back to the value of the first.
"""

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from benchmarks.faults.script import gradients, train

FAULT = {
    "source": "https://github.com/fla-org/flash-linear-attention/commit/1bc96a6418fe000acdf6e2b0bab5ac601b3e98b4",
    "kind": "arguments lost",
    "saw": "gradients of RWKV-7 were wrong with checkpointing",
    "right": "attention and block return v_first, and it is taken from the checkpoint call",
    "cause": ["v_first", "in place", "in-place", "writes into"],
    "cure": "",
}
MENDED = False
MODES = ("reentrant",)


class RWKV7Attention(nn.Module):
    def __init__(self, width, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx
        self.r_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.v0 = nn.Parameter(torch.zeros(width)) if layer_idx else None

    def forward(self, hidden_states, v_first):
        r, k, v = self.r_proj(hidden_states), self.k_proj(hidden_states), self.v_proj(hidden_states)
        if self.layer_idx:
            v = torch.lerp(v, v_first, self.v0.sigmoid())
        else:
            if MENDED:
                v_first = v
            else:
                v_first.copy_(v)
        mixed = r.sigmoid() * (torch.tanh(k) * v).cumsum(1)
        return self.o_proj(mixed), v_first


class RWKV7Block(nn.Module):
    def __init__(self, width, layer_idx):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(width), RWKV7Attention(width, layer_idx)

    def forward(self, hidden_states, v_first):
        mixed, v_first = self.attn(self.norm(hidden_states), v_first)
        if MENDED:
            return hidden_states + mixed, v_first
        return hidden_states + mixed


class RWKV7Model(PreTrainedModel):
    config_class = PreTrainedConfig
    supports_gradient_checkpointing = True

    def __init__(self, config, width=16):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(32, width)
        self.layers = nn.ModuleList(RWKV7Block(width, index) for index in range(3))
        self.gradient_checkpointing = False
        self.post_init()

    def forward(self, input_ids):
        hidden_states = self.embed_tokens(input_ids)
        v_first = torch.empty_like(hidden_states, requires_grad=False)
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                output = self._gradient_checkpointing_func(layer.__call__, hidden_states, v_first)
            else:
                output = layer(hidden_states, v_first)
            if MENDED:
                hidden_states, v_first = output
            else:
                hidden_states = output
        return hidden_states


def make():
    torch.manual_seed(0)
    model = RWKV7Model(PreTrainedConfig()).train()
    model.gradient_checkpointing_enable({"use_reentrant": True})
    return model, {"input_ids": torch.randint(32, (2, 10))}


def symptom():
    return gradients(make)


if __name__ == "__main__":
    train(make)
