"""A mixture of experts is computed again with router scores that differ in the last bit: tokens change their expert.

The router's kernel sums in whatever order; nearly equal scores change places, and the experts' buffers their shape.
"""

from functools import partial
from itertools import count

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from benchmarks.faults.script import Switched, error, train

FAULT = {
    "source": "https://github.com/NVIDIA-NeMo/Automodel/pull/2635",
    "kind": "routing drift",
    "saw": "CheckpointError at the first step: a map of rows had another shape in the recompute",
    "right": "what the router computed is kept, and not computed again",
    "cause": ["rout", "expert", "top-k", "topk"],
    "cure": "",
}
MENDED = False
CALLS = count()


@torch.library.custom_op("faults_moe::scores", mutates_args=())
def scores(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply, with sums in another order each time, as a kernel that adds atomically."""
    parts = (1, 2, 3, 6)[next(CALLS) % 4]
    pieces = zip(x.chunk(parts, -1), weight.chunk(parts, -1), strict=True)
    return sum((a @ b.T).bfloat16() for a, b in pieces)


def backward(ctx, grad):
    x, weight = ctx.saved_tensors
    return grad @ weight, grad.flatten(0, -2).T @ x.flatten(0, -2)


scores.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


class MoE(nn.Module):
    def __init__(self, width=24, experts=8):
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(width), nn.Parameter(torch.randn(experts, width) / 8)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))

    def forward(self, x):
        y = self.norm(x)
        weight, chosen = scores(y.bfloat16(), self.gate.bfloat16()).float().softmax(-1).max(-1)
        mixed = torch.zeros_like(y)
        for index, expert in enumerate(self.experts):
            rows = (chosen == index).nonzero().squeeze(-1)
            mixed = mixed.index_add(0, rows, torch.tanh(expert(y[rows])))
        return x + weight[:, None] * mixed


def policy(ctx, function, *args, **kwargs):
    kept = function is torch.ops.faults_moe.scores.default
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


class MoEModel(Switched):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(600, 24), nn.Linear(24, 600)
        self.layers = nn.ModuleList(MoE() for _ in range(3))

    def forward(self, ids):
        x = self.embed(ids).flatten(0, 1)
        for layer in self.layers:
            if not (self.gradient_checkpointing and self.training):
                x = layer(x)
            else:
                if MENDED:
                    context = partial(create_selective_checkpoint_contexts, policy)
                    x = checkpoint(layer, x, use_reentrant=False, context_fn=context)
                else:
                    x = checkpoint(layer, x, use_reentrant=False)
        return F.cross_entropy(self.head(x), ids.flatten())


def make():
    torch.manual_seed(0)
    return MoEModel(), {"ids": torch.arange(600).reshape(2, 300)}


def symptom():
    return error(lambda: train(make, steps=2))


if __name__ == "__main__":
    train(make)
