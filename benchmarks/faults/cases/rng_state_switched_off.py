"""Checkpoints do not keep the state of the generator, though the model has dropout.

The partial was written for models without dropout. Each recompute draws masks of its own, and the gradients belong to
another network than the loss.
"""

import functools
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.faults.script import gradients, train

FAULT = {
    "source": "https://github.com/allenai/OLMo/pull/702",
    "kind": "random numbers",
    "saw": "with dropout above zero, activation checkpointing changes the gradients",
    "right": "the state of the generator is kept where the model draws random numbers",
    "cause": ["preserve_rng_state", "dropout", "random"],
    "cure": "apply",
    "held_out": True,
}
MENDED = False


@dataclass
class Config:
    d_model: int = 16
    n_layers: int = 3
    residual_dropout: float = 0.2
    embedding_dropout: float = 0.0


def activation_checkpoint_function(config):
    if MENDED:
        draws = config.residual_dropout > 0 or config.embedding_dropout > 0
        return functools.partial(torch.utils.checkpoint.checkpoint, preserve_rng_state=draws, use_reentrant=False)
    else:
        return functools.partial(torch.utils.checkpoint.checkpoint, preserve_rng_state=False, use_reentrant=False)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model)
        self.ff_proj, self.ff_out = nn.Linear(config.d_model, 64), nn.Linear(32, config.d_model)
        self.dropout = nn.Dropout(config.residual_dropout)

    def forward(self, x):
        up, gate = self.ff_proj(self.norm(x.cumsum(1))).chunk(2, -1)
        return x + self.dropout(self.ff_out(nn.functional.silu(gate) * up))


class LanguageModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wte, self.emb_drop = nn.Embedding(32, config.d_model), nn.Dropout(config.embedding_dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.strategy = None
        self._checkpoint = activation_checkpoint_function(config)

    def set_activation_checkpointing(self, strategy):
        self.strategy = strategy

    def forward(self, input_ids):
        x = self.emb_drop(self.wte(input_ids))
        for block in self.blocks:
            x = self._checkpoint(block, x) if self.strategy == "whole_layer" else block(x)
        return nn.functional.cross_entropy((x[:, :-1] @ self.wte.weight.T).flatten(0, 1), input_ids[:, 1:].flatten())


def off(model):
    model.set_activation_checkpointing(None)


def switch(model, mode):
    model.set_activation_checkpointing(None if mode is None else "whole_layer")


def make():
    torch.manual_seed(0)
    model = LanguageModel(Config())
    model.set_activation_checkpointing("whole_layer")
    return model, {"input_ids": torch.randint(32, (2, 9))}


def symptom():
    return gradients(make, off)


if __name__ == "__main__":
    train(make)
