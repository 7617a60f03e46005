"""Activations are offloaded once per storage, and a tensor and its transpose have the same storage.

Both come back with the values of the first and the shape of their own, which for a square one goes unnoticed.
"""

import torch
from torch import nn

from benchmarks.faults.script import gradients, train

FAULT = {
    "source": "https://github.com/modelscope/ms-swift/pull/10157",
    "kind": "offload",
    "saw": "gradients are wrong where a square tensor and its transpose are saved",
    "right": "what is stored is found by device, address, shape and strides",
    "cause": ["saved_tensors_hooks", "transpose", "stride", "unpack", "came back", "offload"],
    "cure": "",
}
MENDED = False


class OffloadActivations(torch.autograd.graph.saved_tensors_hooks):
    """Keeps what autograd saves on the CPU, each tensor once."""

    def __init__(self):
        self.stored = {}
        super().__init__(self.pack, self.unpack)

    def pack(self, tensor):
        if MENDED:
            key = tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
        else:
            key = tensor.untyped_storage().data_ptr(), tensor.dtype
        if key not in self.stored:
            self.stored[key] = tensor, tensor.detach().to("cpu", copy=True).contiguous()
        return key, tensor.shape, tensor.device

    def unpack(self, packed):
        key, shape, device = packed
        return self.stored[key][1].reshape(shape).to(device)


class Similarity(nn.Module):
    """Mixes tokens by how alike they are."""

    def __init__(self, width):
        super().__init__()
        self.proj, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        x_hat = torch.tanh(self.proj(x))
        return x + self.out((x_hat @ x_hat.t() / len(x)).softmax(-1) @ x)


class TokenMixer(nn.Module):
    offload = True

    def __init__(self, width=16, depth=3):
        super().__init__()
        self.layers = nn.ModuleList(Similarity(width) for _ in range(depth))
        self.head = nn.Linear(width, 4)

    def forward(self, x, labels):
        if self.offload:
            with OffloadActivations():
                x = nn.Sequential(*self.layers)(x)
        else:
            x = nn.Sequential(*self.layers)(x)
        return nn.functional.cross_entropy(self.head(x), labels)


def make():
    torch.manual_seed(0)
    return TokenMixer(), {"x": torch.randn(16, 16), "labels": torch.arange(16) % 4}


def off(model):
    model.offload = False


def symptom():
    return gradients(make, off)


if __name__ == "__main__":
    train(make)
