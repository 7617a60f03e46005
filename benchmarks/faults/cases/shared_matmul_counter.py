"""The policy "keep every second matmul" counts on from layer to layer: odd layers keep less than even ones.

One counter is shared by all layers, and a layer has an odd number of matmuls, so that the alternation flips.
"""

from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from benchmarks.faults.script import Switched, cured, number, train

FAULT = {
    "source": "https://github.com/pytorch/torchtitan/commit/8aa96acb282e959f8ceea5fe4342ebbddc33b745",
    "kind": "never checkpointed",
    "saw": "layers of odd numbers keep fewer matmuls than those of even numbers, and take longer",
    "right": "all layers keep the same",
    "cause": ["CKPT012", "counter", "another choice", "other results"],
}
MENDED = False


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wkv = nn.Linear(dim, 2 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.w1 = nn.Linear(dim, 4 * dim, bias=False)
        self.w2 = nn.Linear(4 * dim, dim, bias=False)
        self.ffn_norm = nn.RMSNorm(dim)

    def forward(self, x):
        k, v = self.wkv(x).chunk(2, -1)
        x = x + self.wo(nn.functional.scaled_dot_product_attention(self.wq(x), k, v))
        return x + self.ffn_norm(self.w2(torch.sin(self.w1(x))))


def every_second(count):
    def policy(ctx, op, *args, **kwargs):
        mode = "recompute" if ctx.is_recompute else "forward"
        if op == torch.ops.aten.mm.default:
            count[mode] = count.get(mode, 0) + 1
            if count[mode] % 2:
                return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return policy


class Model(Switched):
    def __init__(self, dim=16):
        super().__init__()
        self.tok_embeddings = nn.Embedding(32, dim)
        self.layers = nn.ModuleList(Block(dim) for _ in range(4))
        self.output = nn.Linear(dim, 32)

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        count = {}
        for layer in self.layers:
            if MENDED:
                count = {}
            contexts = partial(create_selective_checkpoint_contexts, every_second(count))
            if self.gradient_checkpointing:
                x = checkpoint(layer, x, use_reentrant=False, context_fn=contexts)
            else:
                x = layer(x)
        return nn.functional.cross_entropy(self.output(x).flatten(0, 1), tokens.flatten())


def make():
    torch.manual_seed(0)
    return Model(), {"tokens": torch.arange(24).reshape(2, 12)}


class Matmuls(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts matrix products."""

    seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen += func == torch.ops.aten.mm.default
        return func(*args, **(kwargs or {}))


def symptom():
    """Compare how many matmuls are run again in the last layer, and in the one before."""
    model, batch = make()
    cured(model)
    loss = model(**batch)
    seen = []
    with Matmuls() as matmuls:
        for layer in model.layers:
            layer.register_forward_pre_hook(lambda *_: seen.append(-matmuls.seen))
            layer.register_forward_hook(lambda *_: seen.append(seen.pop() + matmuls.seen), always_call=True)
        loss.backward()
    return number("matmuls run again in the last layer, beside the one before", seen[0] - seen[1], 0)


if __name__ == "__main__":
    train(make)
