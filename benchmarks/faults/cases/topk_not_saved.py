"""A selective policy saves matmuls and has the choice of experts made again, by an operator that is not deterministic.

Equal scores are chosen among in any order on some backends. The recompute then sends tokens to other experts, and
takes the matmuls that were kept for those of the forward.
"""

from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from benchmarks.faults.script import Switched, gradients, train

FAULT = {
    "source": "https://github.com/pytorch/torchtitan/commit/7074b056aa5e55991cf52bd3ee36d6e987a0a734",
    "kind": "routing drift",
    "saw": "on some backends the recompute assigns tokens to other experts, and gradients are wrong without an error",
    "right": "the policy saves what topk returns",
    "cause": ["topk", "router", "expert", "chose"],
    "cure": "wrap",
}
MENDED = False


@torch.library.custom_op("small_backend::topk", mutates_args=())
def topk(scores: torch.Tensor, k: int) -> torch.Tensor:
    """Choose k of the last dimension; which of equal ones is left to the thread that runs it."""
    order = torch.arange(scores.shape[-1])
    if torch._C._current_graph_task_id() != -1:
        order = order.flip(0)
    return order[scores[..., order].topk(k, dim=-1).indices]


SAVED = (torch.ops.aten.mm.default, *((torch.ops.small_backend.topk.default,) if MENDED else ()))


def policy(ctx, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op in SAVED else CheckpointPolicy.PREFER_RECOMPUTE


class MoE(nn.Module):
    def __init__(self, dim, experts=4, top_k=2):
        super().__init__()
        self.top_k = top_k
        self.gate = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList(nn.Linear(dim, dim) for _ in range(experts))

    def forward(self, x):
        scores = self.gate(x).sigmoid()
        coarse = scores.detach().to(torch.float8_e4m3fn).float()
        selected = torch.ops.small_backend.topk(coarse, self.top_k)
        weights = torch.zeros_like(scores).scatter(-1, selected, scores.gather(-1, selected))
        return sum(weights[..., i, None] * expert(x).tanh() for i, expert in enumerate(self.experts))


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.RMSNorm(dim)
        self.moe = MoE(dim)

    def forward(self, x):
        return x + self.moe(self.norm(x))


class Model(Switched):
    def __init__(self, dim=16):
        super().__init__()
        self.tok_embeddings = nn.Embedding(32, dim)
        self.layers = nn.ModuleList(Block(dim) for _ in range(2))
        self.output = nn.Linear(dim, 32)

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        contexts = partial(create_selective_checkpoint_contexts, policy)
        for layer in self.layers:
            if self.gradient_checkpointing:
                x = checkpoint(layer, x, use_reentrant=False, context_fn=contexts)
            else:
                x = layer(x)
        return nn.functional.cross_entropy(self.output(x).flatten(0, 1), tokens.flatten())


def make():
    torch.manual_seed(0)
    return Model(), {"tokens": torch.arange(24).reshape(2, 12)}


def symptom():
    return gradients(make)


if __name__ == "__main__":
    train(make)
