"""Layers are checkpointed in chunks, and the last chunk runs past the end of the list.

The number of layers is not a multiple of the chunk's.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, error, train

FAULT = {
    "source": "https://github.com/NVIDIA/Megatron-LM/commit/9054192b9bf2b648525bd9188aaeaebe76ec97b7",
    "kind": "never checkpointed",
    "saw": "IndexError: index 5 is out of range",
    "right": "the last chunk ends with the last layer",
    "cause": ["out of range"],
    "cure": "",
}
MENDED = False


class Layer(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.input_layernorm = nn.LayerNorm(width)
        self.self_attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, hidden_states, attention_mask):
        x = self.input_layernorm(hidden_states)
        x = hidden_states + self.self_attention(x, x, x, attn_mask=attention_mask, need_weights=False)[0]
        return x + self.mlp(x)


class TransformerBlock(Switched):
    recompute_num_layers = 2

    def __init__(self, layers=5):
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def _run(self, start, end):
        def custom_forward(hidden_states, attention_mask):
            for index in range(start, end):
                hidden_states = self.layers[index](hidden_states, attention_mask)
            return hidden_states

        return custom_forward

    def forward(self, ids):
        length = ids.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        hidden_states = self.embedding(ids)
        if not (self.gradient_checkpointing and self.training):
            return self._run(0, len(self.layers))(hidden_states, mask)
        index = 0
        while index < len(self.layers):
            end = index + self.recompute_num_layers
            if MENDED:
                end = min(end, len(self.layers))
            hidden_states = checkpoint(self._run(index, end), hidden_states, mask, use_reentrant=self.use_reentrant)
            index = end
        return hidden_states


def make():
    torch.manual_seed(0)
    return TransformerBlock(), {"ids": torch.randint(32, (2, 8))}


def symptom():
    return error(lambda: train(make, steps=2))


if __name__ == "__main__":
    train(make)
