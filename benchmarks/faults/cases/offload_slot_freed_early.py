"""Offloading gives the buffer of a restored activation back as soon as its node has run, whatever the node returns.

A fused loss saves the gradient that it has computed in its forward, and its backward returns that very tensor. The
next activation is restored into the same buffer, over a gradient that is still on its way.
"""

import torch
from torch import nn

from benchmarks.faults.script import gradients, train

FAULT = {
    "source": "https://github.com/meta-pytorch/torchtune/commit/3ca0d309c67ea996cc69f29691bc97ad7de00819",
    "kind": "offload",
    "saw": "gradients are wrong with activation offloading, while the loss is right",
    "right": "a buffer stays taken while an output of the node shares its storage",
    "cause": ["alias", "shares its storage", "share a storage", "reused", "overwritten"],
    "cure": "",
    "held_out": True,
}
MENDED = False


class Offload(torch.autograd.graph.saved_tensors_hooks):
    def __init__(self, slots):
        self.free = slots
        super().__init__(self.pack, self.unpack)

    def pack(self, tensor):
        if isinstance(tensor, nn.Parameter) or not tensor.is_floating_point() or tensor.dim() < 2:
            return tensor
        return tensor.detach().clone(), tensor.stride()

    def unpack(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        host, stride = packed
        slot = self.free.pop()
        restored = slot.as_strided(host.shape, stride).copy_(host)
        address = slot.data_ptr()

        def give_back(outputs, _):
            if MENDED:
                shared = [out for out in outputs if out is not None and out.untyped_storage().data_ptr() == address]
            else:
                shared = []
            if not shared:
                self.free.append(slot)

        torch._C._current_autograd_node().register_hook(give_back)
        return restored


class FusedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, target):
        with torch.enable_grad():
            leaf, head = hidden.detach().requires_grad_(), weight.detach().requires_grad_()
            loss = nn.functional.cross_entropy(leaf @ head.T, target)
        ctx.save_for_backward(*torch.autograd.grad(loss, (leaf, head)))
        return loss.detach()

    @staticmethod
    def backward(ctx, _):
        return *ctx.saved_tensors, None


class Tuned(nn.Module):
    def __init__(self, dim=16, vocabulary=24):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(dim, dim), nn.SiLU()) for _ in range(3))
        self.output = nn.Parameter(torch.randn(vocabulary, dim) / 4)
        self.offloads = True
        self.slots = [torch.empty(4096) for _ in range(16)]

    def forward(self, tokens):
        if not self.offloads:
            return self.loss(tokens)
        with Offload(list(self.slots)):
            return self.loss(tokens)

    def loss(self, tokens):
        x = self.tok_embeddings(tokens[:, :-1])
        for layer in self.layers:
            x = x + layer(x)
        return FusedLoss.apply(x.flatten(0, 1), self.output, tokens[:, 1:].flatten())


def off(model):
    model.offloads = False


def switch(model, mode):
    model.offloads = mode is not None


def make():
    torch.manual_seed(0)
    return Tuned(), {"tokens": torch.randint(24, (2, 9))}


def symptom():
    return gradients(make, off)


if __name__ == "__main__":
    train(make)
