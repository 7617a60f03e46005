"""Offloaded activations are freed once the node that asked for them has run, and a recompute has kept views of them.

The first node of a checkpointed block brings the block's input back; the recompute saves it for the nodes to come.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, Symptom, gradients, train

FAULT = {
    "source": "https://github.com/meta-pytorch/torchtune/commit/9eced211ba694dd4c45819c01962204582570737",
    "kind": "offload",
    "saw": "gradients are NaN where activations are offloaded and checkpointed",
    "right": "memory is freed only where nothing else uses its storage",
    "cause": ["NaN", "not finite", "overwrit", "freed", "offload"],
    "cure": "",
}
MENDED = False


class Pool:
    """Buffers on the device, which go to somebody else once they are given back."""

    def take(self, stored):
        return stored.clone()

    def give_back(self, buffer):
        buffer.untyped_storage().copy_(torch.full_like(buffer, float("nan")).untyped_storage())


def users(tensor):
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


class OffloadActivations(torch.autograd.graph.saved_tensors_hooks):
    def __init__(self):
        self.pool, self.stored = Pool(), []
        super().__init__(self.pack, self.unpack)

    def pack(self, tensor):
        if isinstance(tensor, nn.Parameter) or not tensor.is_floating_point():
            return tensor
        self.stored.append(tensor.detach().to("cpu", copy=True))
        return len(self.stored) - 1

    def unpack(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        buffer = self.pool.take(self.stored[packed])
        before = users(buffer)

        def free(outputs, inputs):
            if MENDED:
                escaped = users(buffer) > before
            else:
                escaped = any(output is not None and output._base is buffer for output in outputs)
            if not escaped:
                self.pool.give_back(buffer)

        torch._C._current_autograd_node().register_hook(free)
        return buffer


class FeedForward(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.w1, self.w2, self.w3 = nn.Linear(width, 32), nn.Linear(32, width), nn.Linear(width, 32)

    def forward(self, x):
        y = self.norm(x)
        return x + self.w2(nn.functional.silu(self.w1(y)) * self.w3(y))


class Decoder(Switched):
    def __init__(self):
        super().__init__()
        self.tok_embeddings, self.output = nn.Embedding(32, 16), nn.Linear(16, 32)
        self.layers = nn.ModuleList(FeedForward() for _ in range(3))

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        with OffloadActivations():
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False) if self.gradient_checkpointing else layer(x)
        return nn.functional.cross_entropy(self.output(x).flatten(0, 1), tokens.roll(-1, 1).flatten())


def make():
    torch.manual_seed(0)
    return Decoder(), {"tokens": torch.randint(32, (2, 8))}


def symptom():
    found = gradients(make)
    if found.measured != found.measured:
        return Symptom(found.quantity, "NaN", found.right, True)
    return found


if __name__ == "__main__":
    train(make)
