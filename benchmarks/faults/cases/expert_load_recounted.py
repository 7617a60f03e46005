"""A gate adds up its experts' load, into a tensor that its first forward makes: the recompute takes the other path.

Selective checkpointing finds an addition in the recompute that the forward had not; full checkpointing counts twice.
"""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from benchmarks.faults.script import Switched, error, train

FAULT = {
    "source": "https://github.com/NVIDIA-NeMo/Automodel/pull/3247",
    "kind": "state twice",
    "saw": "aten.add_ encountered during backward but not found in storage",
    "right": "the load is counted once for each step, and the recompute does what the forward did",
    "cause": ["cumulative_load", "twice", "once more", "state that changed"],
    "cure": "",
}
MENDED = False
COUNTER = "model" if MENDED else "gate"
SAVED = {torch.ops.aten.mm.default}


class Gate(nn.Module):
    def __init__(self, width, experts):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, width) / 4)
        self.cumulative_load = None

    def count(self, chosen):
        load = torch.bincount(chosen, minlength=len(self.weight))
        if self.cumulative_load is None:
            self.cumulative_load = load
        else:
            self.cumulative_load += load

    def forward(self, x):
        weight, chosen = F.linear(x, self.weight).softmax(-1).max(-1)
        if COUNTER == "gate":
            self.count(chosen.detach())
        return weight, chosen


class MoEBlock(nn.Module):
    def __init__(self, width=16, experts=4):
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(width), Gate(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, width) / 4)

    def forward(self, x):
        weight, chosen = self.gate(self.norm(x))
        one_hot = F.one_hot(chosen, len(self.up)).to(x)
        mixed = torch.einsum("te,tw,ewv->tv", one_hot, x, self.up)
        return x + weight[:, None] * torch.tanh(mixed), chosen


def policy(ctx, function, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if function in SAVED else CheckpointPolicy.PREFER_RECOMPUTE


class MoEModel(Switched):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.layers = nn.ModuleList(MoEBlock() for _ in range(2))
        self.head = nn.Linear(16, 32)

    def forward(self, ids):
        x = self.embed(ids).flatten(0, 1)
        for layer in self.layers:
            if self.gradient_checkpointing:
                context = partial(create_selective_checkpoint_contexts, policy)
                x, chosen = checkpoint(layer, x, use_reentrant=False, context_fn=context)
            else:
                x, chosen = layer(x)
            if COUNTER == "model":
                layer.gate.count(chosen)
        return F.cross_entropy(self.head(x), ids.flatten())


def make():
    torch.manual_seed(0)
    return MoEModel(), {"ids": torch.randint(32, (2, 8))}


def symptom():
    return error(lambda: train(make, steps=2))


if __name__ == "__main__":
    train(make)
