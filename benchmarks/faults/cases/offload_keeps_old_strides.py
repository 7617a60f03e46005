"""Offloading copies an activation as contiguous, and restores it with the strides and offset of the original.

The copy holds what the view shows, not the storage behind it: `as_strided` reads past its end, or other elements.
"""

import torch
from torch import nn

from benchmarks.faults.script import cured, error, loss_of, train

FAULT = {
    "source": "https://github.com/huggingface/trl/commit/25e294c4dc76ba6ea386375b58a888baa4cf34ca",
    "kind": "offload",
    "saw": "RuntimeError in the backward: as_strided is out of bounds for a storage of this size",
    "right": "strides and offset are those of the copy",
    "cause": ["as_strided", "stride", "storage_offset", "storage offset"],
    "cure": "",
    "held_out": True,
}
MENDED = False


def pack(tensor):
    if isinstance(tensor, nn.Parameter) or tensor.numel() < 64:
        return tensor, None
    if MENDED:
        tensor = tensor.contiguous() if tensor.storage_offset() == 0 else tensor.clone().contiguous()
    copy = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    return copy, (tensor.shape, tensor.stride(), tensor.storage_offset())


def unpack(packed):
    copy, layout = packed
    return copy if layout is None else torch.as_strided(copy, *layout)


class Mixer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.in_proj, self.out_proj = nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.conv = nn.Conv1d(dim, dim, 3, padding=2, groups=dim)

    def forward(self, x):
        values, gate = self.in_proj(x).chunk(2, -1)
        values = self.conv(values.transpose(1, 2))[..., : x.size(1)].transpose(1, 2)
        return x + self.out_proj(values * torch.sigmoid(gate))


class Trained(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.embed = nn.Embedding(32, dim)
        self.layers = nn.ModuleList(Mixer(dim) for _ in range(2))
        self.lm_head = nn.Linear(dim, 32)
        self.offloads = True

    def forward(self, input_ids):
        if not self.offloads:
            return self.loss(input_ids)
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return self.loss(input_ids)

    def loss(self, input_ids):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.lm_head(x[:, :-1]).flatten(0, 1), input_ids[:, 1:].flatten())


def off(model):
    model.offloads = False


def switch(model, mode):
    model.offloads = mode is not None


def make():
    torch.manual_seed(0)
    return Trained(), {"input_ids": torch.randint(32, (2, 9))}


def step():
    model, batch = make()
    cured(model)
    loss_of(model(**batch)).backward()


def symptom():
    return error(step)


if __name__ == "__main__":
    train(make)
