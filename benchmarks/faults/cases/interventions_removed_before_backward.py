"""An intervention is a hook that lives as long as the forward: the recompute runs the plain module.

The hooks are registered, the model is run, the hooks are removed. Checkpointed layers come to their recompute when
backward is called, after that.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, cured, error, loss_of, train

FAULT = {
    "source": "https://github.com/stanfordnlp/pyvene/pull/242",
    "kind": "mode",
    "saw": "CheckpointError: a different number of tensors was saved, with non-reentrant checkpointing",
    "right": "the hooks stay until the backward is over",
    "cause": ["hook"],
    "cure": "",
    "held_out": True,
}
MENDED = False


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, x):
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.mlp(x)


class Base(Switched):
    def __init__(self, dim=16):
        super().__init__()
        self.embed = nn.Embedding(32, dim)
        self.layers = nn.ModuleList(Layer(dim) for _ in range(3))
        self.score = nn.Linear(dim, 2)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.gradient_checkpointing else layer(x)
        return self.score(x[:, -1])


class LowRankIntervention(nn.Module):
    def __init__(self, dim, rank=2):
        super().__init__()
        self.rotate = nn.Parameter(torch.linalg.qr(torch.randn(dim, rank))[0])
        self.source = nn.Linear(dim, rank)

    def forward(self, module, args, output):
        return output + (self.source(output) - output @ self.rotate) @ self.rotate.T


class Intervenable(nn.Module):
    def __init__(self, model, dim=16):
        super().__init__()
        self.model = model.requires_grad_(False)
        self.interventions = nn.ModuleDict({"layers:1:mlp": LowRankIntervention(dim)})
        self.handles = []

    def remove(self):
        while self.handles:
            self.handles.pop().remove()

    def forward(self, ids, labels):
        self.remove()
        for place, intervention in self.interventions.items():
            self.handles.append(self.model.get_submodule(place.replace(":", ".")).register_forward_hook(intervention))
        logits = self.model(ids)
        if MENDED:
            return nn.functional.cross_entropy(logits, labels)
        self.remove()
        return nn.functional.cross_entropy(logits, labels)


def off(model):
    model.model.gradient_checkpointing_disable()


def switch(model, mode):
    model.model.gradient_checkpointing = mode is not None


def make():
    torch.manual_seed(0)
    return Intervenable(Base()), {"ids": torch.randint(32, (4, 6)), "labels": torch.tensor([0, 1, 1, 0])}


def step():
    model, batch = make()
    cured(model)
    loss_of(model(**batch)).backward()


def symptom():
    return error(step)


if __name__ == "__main__":
    train(make)
