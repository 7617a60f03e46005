"""An encoder with reentrant checkpoints runs twice a step under DistributedDataParallel: parameters are ready twice.

Each reentrant backward marks the encoder's parameters, and the bucket does not expect the second.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.nn.parallel import DistributedDataParallel

from benchmarks.faults.script import cured, error, train

FAULT = {
    "source": "https://github.com/facebookresearch/multimodal/pull/406",
    "kind": "wrapper and sharding",
    "saw": "RuntimeError: expected to mark a variable ready only once",
    "right": "checkpoints that are not reentrant where the strategy is DDP",
    "cause": ["CKPT104", "reentrant", "ready only once"],
    "cure": "wrap",
    "ranks": 2,
}
MENDED = False


class EncoderLayer(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.feedforward = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())

    def forward(self, x):
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.feedforward(x)


class Flava(nn.Module):
    """Encodes an image, and the same image with a part of it masked."""

    def __init__(self):
        super().__init__()
        self.embed, self.unused = nn.Linear(12, 16), nn.Linear(16, 4)
        self.encoder = nn.Sequential(EncoderLayer(), EncoderLayer())

    def forward(self, image, masked):
        whole, part = self.encoder(self.embed(image)), self.encoder(self.embed(masked))
        return (part - whole).square().mean() + (1 - whole.std(0)).relu().mean()


def make():
    if not dist.is_initialized():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Flava()
    variant = CheckpointImpl.NO_REENTRANT if MENDED else CheckpointImpl.REENTRANT
    apply_activation_checkpointing(
        model,
        checkpoint_wrapper_fn=lambda layer: checkpoint_wrapper(layer, checkpoint_impl=variant),
        check_fn=lambda module: isinstance(module, EncoderLayer),
    )
    image = torch.randn(4, 9, 12)
    masked = image * (torch.rand(4, 9, 1) > 0.4)
    return DistributedDataParallel(model, find_unused_parameters=True), {"image": image, "masked": masked}


def off(model):
    for module in model.modules():
        if hasattr(module, "checkpoint_fn"):
            module.checkpoint_fn = lambda function, *args, **kwargs: function(*args, **kwargs)


def symptom():
    def made():
        model, batch = make()
        cured(model)
        return model, batch

    return error(lambda: train(made, steps=2))


if __name__ == "__main__":
    train(make)
