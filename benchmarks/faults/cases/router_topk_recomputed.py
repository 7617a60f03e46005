"""A selective policy keeps the router's scores, but has `topk` run again, which breaks ties in another way.

Padding has the same score for every expert. Which of them win depends on the run of the kernel, so that the recompute
sends other numbers of tokens to the experts. `topk` of this script stands for a device's: it prefers the last of
equals in calls after those of the forward.
"""

import functools

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from benchmarks.faults.script import cured, error, loss_of, train

FAULT = {
    "source": "https://github.com/NVIDIA-NeMo/Automodel/pull/3140",
    "kind": "routing drift",
    "saw": "CheckpointError: a recomputed tensor has one token more than the saved one",
    "right": "the choice of experts is saved together with their scores",
    "cause": ["topk", "top-k", "routing", "router"],
    "cure": "",
    "held_out": True,
}
MENDED = False
EXPERTS, DEPTH = 4, 2
calls = 0


def device_topk(scores, k, dim=-1, largest=True, sorted=True):
    global calls
    calls += 1
    if calls <= DEPTH:
        order = torch.sort(scores, stable=True, dim=dim, descending=largest).indices
    else:
        flipped = torch.sort(scores.flip(dim), stable=True, dim=dim, descending=largest).indices
        order = scores.size(dim) - 1 - flipped
    order = order.narrow(dim, 0, k).contiguous()
    return scores.gather(dim, order), order


kernels = torch.library.Library("aten", "IMPL")
kernels.impl("topk", device_topk, "CPU")


def keep_router(ctx, op, *args, **kwargs):
    projects = op is torch.ops.aten.mm.default and args[1].shape[-1] == EXPERTS
    if MENDED:
        projects = projects or op is torch.ops.aten.topk.default
    return CheckpointPolicy.MUST_SAVE if projects else CheckpointPolicy.PREFER_RECOMPUTE


class MoE(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim, bias=False)
        self.gate = nn.Linear(dim, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim)) for _ in range(4)
        )

    def forward(self, x):
        tokens = self.norm(x).flatten(0, 1)
        weights, chosen = self.gate(tokens).softmax(-1).topk(2)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, slots = (chosen == number).nonzero(as_tuple=True)
            out = out.index_add(0, rows, expert(tokens[rows]) * weights[rows, slots, None])
        return x + out.view_as(x)


class Model(nn.Module):
    ignore_router_for_ac = True

    def __init__(self, dim=16):
        super().__init__()
        self.embed = nn.Embedding(32, dim, padding_idx=0)
        self.layers = nn.ModuleList(MoE(dim) for _ in range(DEPTH))
        self.head = nn.Linear(dim, 32)
        self.recompute = True

    def forward(self, ids):
        global calls
        calls = 0
        x = self.embed(ids)
        kept = functools.partial(create_selective_checkpoint_contexts, keep_router)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False, context_fn=kept) if self.recompute else layer(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), ids.flatten(), ignore_index=0)


def off(model):
    model.recompute = False


def switch(model, mode):
    model.recompute = mode is not None


def make():
    torch.manual_seed(0)
    ids = torch.randint(1, 32, (2, 12))
    ids[0, 7:] = 0
    return Model(), {"ids": ids}


def step():
    model, batch = make()
    cured(model)
    loss_of(model(**batch)).backward()


def symptom():
    return error(step)


if __name__ == "__main__":
    train(make)
