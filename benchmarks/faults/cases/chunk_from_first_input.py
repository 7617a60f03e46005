"""Every layer of a checkpointed chunk is given the input of the chunk: only the last one has an effect.

The loop over the layers of a chunk keeps its result in one name and passes on another.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import gradients, train

FAULT = {
    "source": "https://github.com/NVIDIA/Megatron-LM/commit/fc2c81d3a64c587590b9c3c5f0470e51c4ff4b26",
    "kind": "arguments lost",
    "saw": "with uniform recompute of several layers at once the model learns worse",
    "right": "each layer gets what the layer before it has returned",
    "cause": [
        "loss differs",
        "expected the loss",
        "output differs",
        "outputs differ",
        "other output",
        "not used",
        "has no effect",
    ],
}
MENDED = False
MODES = ("reentrant",)


class TransformerLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.input_layernorm = nn.LayerNorm(width)
        self.self_attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, hidden_states, attention_mask=None):
        x = self.input_layernorm(hidden_states)
        hidden_states = hidden_states + self.self_attention(x, x, x, attn_mask=attention_mask, need_weights=False)[0]
        return hidden_states + self.mlp(hidden_states)


class ParallelTransformer(nn.Module):
    def __init__(self, width, recompute_method="uniform", recompute_num_layers=2):
        super().__init__()
        self.recompute_method = recompute_method
        self.recompute_num_layers = recompute_num_layers
        self.layers = nn.ModuleList(TransformerLayer(width) for _ in range(4))

    def forward(self, hidden_states, attention_mask):
        if self.recompute_method == "uniform":
            for start in range(0, len(self.layers), self.recompute_num_layers):
                chunk = self._custom(start, start + self.recompute_num_layers)
                hidden_states = checkpoint(chunk, hidden_states, attention_mask, use_reentrant=True)
            return hidden_states
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask)
        return hidden_states

    def _custom(self, start, end):
        def custom_forward(*args, **kwargs):
            for index in range(start, end):
                if MENDED:
                    x_, *args = args
                    args = (self.layers[index](x_, *args, **kwargs), *args)
                else:
                    x_ = self.layers[index](*args, **kwargs)
            return args[0] if MENDED else x_

        return custom_forward


class GPT(nn.Module):
    def __init__(self, width=16, vocabulary=32):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.encoder = ParallelTransformer(width)
        self.output_layer = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        mask = torch.ones(2 * tokens.shape[1:], dtype=torch.bool).triu(1)
        logits = self.output_layer(self.encoder(self.embedding(tokens), mask))
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def make():
    torch.manual_seed(0)
    return GPT(), {"tokens": torch.arange(24).reshape(2, 12)}


def off(model):
    model.encoder.recompute_method = None


def switch(model, mode):
    model.encoder.recompute_method = "uniform" if mode else None


def symptom():
    return gradients(make, off)


if __name__ == "__main__":
    train(make)
