"""A strategy wraps every layer of a class for checkpointing, also those that the user has wrapped already.

The check sees the layer inside of the user's wrapper: each layer is computed three times instead of two.
"""

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    CheckpointWrapper,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)

from benchmarks.faults.script import forwards, train

FAULT = {
    "source": "https://github.com/Lightning-AI/pytorch-lightning/commit/ad74f8623fac85e0ff114b07fb0051c6fbb4913d",
    "kind": "wrapper and sharding",
    "saw": "layers are checkpointed within checkpoints, and training is slower",
    "right": "a model that has checkpoint wrappers is left as it is",
    "cause": ["nested", "checkpointed twice", "CKPT006", "CKPT106", "two recomputes", "more than once"],
    "cure": "",
}
MENDED = False


class Layer(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        y = self.norm(x)
        x = x + self.self_attn(y, y, y, need_weights=False)[0]
        return x + torch.tanh(self.linear(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(32, 16), nn.Linear(16, 32)
        self.layers = nn.ModuleList(
            checkpoint_wrapper(Layer(), checkpoint_impl=CheckpointImpl.REENTRANT) for _ in range(3)
        )

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())


class Strategy:
    def __init__(self, activation_checkpointing):
        self.classes = activation_checkpointing

    def setup_module(self, module):
        classes = self.classes
        if MENDED:
            classes = () if any(isinstance(each, CheckpointWrapper) for each in module.modules()) else classes
        apply_activation_checkpointing(module, check_fn=lambda each: isinstance(each, classes))
        return module


def make():
    torch.manual_seed(0)
    model = Strategy(activation_checkpointing=(Layer,)).setup_module(Model())
    return model, {"ids": torch.randint(32, (2, 8))}


def off(model):
    for module in model.modules():
        if isinstance(module, CheckpointWrapper):
            module.checkpoint_fn = lambda function, *args, **kwargs: function(*args, **kwargs)


def symptom():
    return forwards(make, lambda module: isinstance(module, nn.MultiheadAttention), right=2)


if __name__ == "__main__":
    train(make)
