"""DDP waits for gradients of encoder layers that reentrant checkpoints cut off from the loss.

The subsampling in front of them is frozen, and features of audio ask for no gradient: the layers make no graph, and
the second step ends with parameters that were never reduced.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils import checkpoint as ckpt

from benchmarks.faults.script import cured, error, loss_of, train

FAULT = {
    "source": "https://github.com/wenet-e2e/wenet/commit/69a084f95bef27d9a4eb3342b1da70edcf0a5844",
    "kind": "wrapper and sharding",
    "saw": "RuntimeError: Expected to have finished reduction in the prior iteration",
    "right": "checkpointing of the encoder is not reentrant",
    "cause": ["reentrant", "requires_grad"],
    "cure": "wrap",
    "ranks": 2,
    "held_out": True,
}
MENDED = False


class EncoderLayer(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm, self.conv = nn.LayerNorm(size), nn.Conv1d(size, size, 3, padding=1)
        self.feed_forward = nn.Sequential(nn.Linear(size, 2 * size), nn.SiLU(), nn.Linear(2 * size, size))

    def forward(self, xs, mask, pos_emb, mask_pad):
        xs = xs + self.conv(((self.norm(xs) + pos_emb) * mask_pad).transpose(1, 2)).transpose(1, 2)
        return xs + self.feed_forward(xs), mask


class Encoder(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embed = nn.Conv1d(8, size, 3, 2)
        self.encoders = nn.ModuleList(EncoderLayer(size) for _ in range(2))
        self.gradient_checkpointing = True

    def forward(self, feats):
        xs = self.embed(feats.transpose(1, 2)).transpose(1, 2)
        pos_emb = torch.linspace(0, 1, xs.size(1))[None, :, None]
        mask_pad = torch.ones(xs.size(0), xs.size(1), 1)
        mask = mask_pad.transpose(1, 2).bool()
        for layer in self.encoders:
            if self.gradient_checkpointing and self.training:
                if MENDED:
                    xs, mask = ckpt.checkpoint(layer.__call__, xs, mask, pos_emb, mask_pad, use_reentrant=False)
                else:
                    xs, mask = ckpt.checkpoint(layer.__call__, xs, mask, pos_emb, mask_pad, use_reentrant=True)
            else:
                xs, mask = layer(xs, mask, pos_emb, mask_pad)
        return xs


class ASRModel(nn.Module):
    def __init__(self, size=12):
        super().__init__()
        self.encoder = Encoder(size)
        self.ctc = nn.Linear(size, 6)

    def forward(self, feats, labels):
        return nn.functional.cross_entropy(self.ctc(self.encoder(feats)).transpose(1, 2), labels)


def off(model):
    model.module.encoder.gradient_checkpointing = False


def switch(model, mode):
    getattr(model, "module", model).encoder.gradient_checkpointing = mode is not None


def make():
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = ASRModel()
    model.encoder.embed.requires_grad_(False)
    wrapped = DistributedDataParallel(model)
    torch.manual_seed(1 + dist.get_rank())
    return wrapped, {"feats": torch.randn(2, 21, 8), "labels": torch.randint(6, (2, 10))}


def two_steps():
    model, batch = make()
    cured(model)
    for _ in range(2):
        loss_of(model(**batch)).backward()


def symptom():
    return error(two_steps)


if __name__ == "__main__":
    train(make)
    dist.destroy_process_group()
