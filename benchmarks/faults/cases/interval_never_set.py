"""The interval of checkpointing is set under one name and read under another: the pipeline checkpoints nothing.

Nothing is wrong but the memory, which is that of a training without checkpointing.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import memory, train

FAULT = {
    "source": "https://github.com/deepspeedai/DeepSpeed/commit/87e4c8c8c6e3066bbed2004675e742cd089c4101",
    "kind": "never checkpointed",
    "saw": "set_checkpoint_interval() changes nothing",
    "right": "the setter assigns the attribute that is read",
    "cause": [
        "activation_checkpoint_interval",
        "checkpoint_interval",
        "never checkpointed",
        "nothing is checkpointed",
    ],
    "cure": "wrap",
}
MENDED = False


class Mix(nn.Module):
    def __init__(self, tokens=12, width=16):
        super().__init__()
        self.tokens, self.channels = nn.Linear(tokens, tokens), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        x = x + torch.tanh(self.tokens(self.norm(x).transpose(1, 2))).transpose(1, 2)
        return x + torch.tanh(self.channels(x))


class PipelineModule(nn.Module):
    """Layers in a row, of which each `interval` make one checkpoint; 0 for none."""

    def __init__(self, layers, activation_checkpoint_interval=0):
        super().__init__()
        self.activation_checkpoint_interval = activation_checkpoint_interval
        self.forward_funcs = nn.ModuleList(layers)

    def set_checkpoint_interval(self, interval):
        if MENDED:
            self.activation_checkpoint_interval = interval
        else:
            self.checkpoint_interval = interval

    def _run(self, start, end):
        def exec_func(x):
            for layer in self.forward_funcs[start:end]:
                x = layer(x)
            return x

        return exec_func

    def forward(self, x):
        count, interval = len(self.forward_funcs), self.activation_checkpoint_interval
        if interval == 0:
            return self._run(0, count)(x)
        for start in range(0, count, interval):
            end = min(start + interval, count)
            x = checkpoint(self._run(start, end), x, use_reentrant=False)
        return x


def make():
    torch.manual_seed(0)
    model = PipelineModule([nn.Linear(8, 16), *(Mix() for _ in range(7)), nn.Linear(16, 8)])
    model.set_checkpoint_interval(3)
    return model, {"x": torch.randn(4, 12, 8)}


def off(model):
    model.activation_checkpoint_interval = 0


def switch(model, mode):
    model.set_checkpoint_interval(0 if mode is None else 3)


MODES = ["non_reentrant"]


def symptom():
    return memory(make, off)


if __name__ == "__main__":
    train(make)
