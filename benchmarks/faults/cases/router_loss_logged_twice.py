"""A router adds its balancing loss to a tracker in each forward of a training, and the recompute is one.

The gradients are right, and the loss that is logged is twice what it was.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, cured, number, train

FAULT = {
    "source": "https://github.com/NVIDIA/Megatron-LM/commit/e6d56d6828c0773f55772b92b2ec0eed5639665e",
    "kind": "state twice",
    "saw": "the logged auxiliary loss is doubled by activation checkpointing",
    "right": "what is logged is added once for each step",
    "cause": ["TRACKER", "twice", "once more"],
    "cure": "wrap",
}
MENDED = False
TRACKER = {}


def save_to_aux_losses_tracker(name, loss, layer, layers):
    values = TRACKER.setdefault(name, torch.zeros(layers))
    values[layer] += loss.detach()


class TopKRouter(nn.Module):
    def __init__(self, layer, layers, width, experts):
        super().__init__()
        self.layer, self.layers = layer, layers
        self.weight = nn.Parameter(torch.randn(experts, width) / 4)

    def forward(self, x):
        probs, chosen = F.linear(x, self.weight).softmax(-1).max(-1)
        share = F.one_hot(chosen, len(self.weight)).float().mean((0, 1))
        loss = len(self.weight) * (share * F.linear(x, self.weight).softmax(-1).mean((0, 1))).sum()
        if self.training and (torch.is_grad_enabled() if MENDED else True):
            save_to_aux_losses_tracker("load_balancing_loss", loss, self.layer, self.layers)
        return probs, chosen


class MoELayer(nn.Module):
    def __init__(self, layer, layers, width=16, experts=4):
        super().__init__()
        self.norm, self.router = nn.LayerNorm(width), TopKRouter(layer, layers, width, experts)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))

    def forward(self, x):
        y = self.norm(x)
        probs, chosen = self.router(y)
        mixed = torch.zeros_like(y)
        for index, expert in enumerate(self.experts):
            mixed = torch.where((chosen == index)[..., None], expert(y), mixed)
        return x + probs[..., None] * mixed


class MoEModel(Switched):
    use_reentrant = True

    def __init__(self, layers=2):
        super().__init__()
        self.embedding, self.output = nn.Embedding(32, 16), nn.Linear(16, 32)
        self.layers = nn.ModuleList(MoELayer(layer, layers) for layer in range(layers))

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(layer, x, use_reentrant=self.use_reentrant)
            else:
                x = layer(x)
        return F.cross_entropy(self.output(x).flatten(0, 1), ids.roll(-1, 1).flatten())


def make():
    torch.manual_seed(0)
    return MoEModel(), {"ids": torch.randint(32, (2, 8))}


def logged(prepare):
    TRACKER.clear()
    model, batch = make()
    prepare(model)
    model(**batch).backward()
    return TRACKER["load_balancing_loss"].sum().item()


def symptom():
    return number("auxiliary loss that is logged", logged(cured), logged(MoEModel.gradient_checkpointing_disable))


if __name__ == "__main__":
    train(make)
