"""Offloading keeps most activations where they are: it knows storages that it has taken by their address.

An activation that is offloaded is freed, and the allocator gives its address to the next one, which then passes for
another view of what is offloaded already.
"""

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from benchmarks.faults.script import cured, loss_of, number, train

FAULT = {
    "source": "https://github.com/huggingface/trl/pull/6241",
    "kind": "offload",
    "saw": "memory falls less than it should: activations stay that are no views of what was offloaded",
    "right": "every activation above the threshold is offloaded",
    "cause": ["address", "data_ptr", "not offloaded", "offloaded once"],
    "cure": "",
    "held_out": True,
}
MENDED = False
WIDTH, DEPTH = 64, 12


class OffloadActivations(torch.autograd.graph.saved_tensors_hooks):
    def __init__(self, model, min_bytes=1024):
        self.parameters = {parameter.data_ptr() for parameter in model.parameters()}
        self.min_bytes = min_bytes
        self.seen = {}
        self.host = torch.empty(4 * DEPTH, 64 * WIDTH)
        self.used = 0
        super().__init__(self.pack, self.unpack)

    def is_view_of_offloaded(self, storage):
        if MENDED:
            known = storage.data_ptr() in self.seen and not self.seen[storage.data_ptr()].expired()
        else:
            known = storage.data_ptr() in self.seen
        self.seen[storage.data_ptr()] = StorageWeakRef(storage)
        return known

    def pack(self, tensor):
        storage = tensor.untyped_storage()
        if tensor.nbytes < self.min_bytes or storage.data_ptr() in self.parameters:
            return tensor
        if self.is_view_of_offloaded(storage):
            return tensor
        self.used += 1
        host = self.host[self.used - 1, : tensor.numel()]
        host.copy_(tensor.flatten())
        return host, tensor.shape

    def unpack(self, packed):
        return packed if isinstance(packed, torch.Tensor) else packed[0].clone().view(packed[1])


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, 1)
        self.offload = True

    def forward(self, x, y):
        if not self.offload:
            return self.loss(x, y)
        self.offloader = OffloadActivations(self)
        with self.offloader:
            return self.loss(x, y)

    def loss(self, x, y):
        x = x * 2  # nobody else holds it
        for layer in self.layers:
            x = nn.functional.gelu(layer(x))
        return nn.functional.mse_loss(self.head(x), y)


def off(model):
    model.offload = False


def switch(model, mode):
    model.offload = mode is not None


def make():
    torch.manual_seed(0)
    return Regressor(), {"x": torch.randn(64, WIDTH), "y": torch.randn(64, 1)}


def symptom():
    model, batch = make()
    cured(model)
    loss_of(model(**batch))
    return number("activations offloaded in a forward", model.offloader.used, 2 * DEPTH + 1)


if __name__ == "__main__":
    train(make, lr=0.01)
