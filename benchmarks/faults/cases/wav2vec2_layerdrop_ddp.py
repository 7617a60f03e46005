"""Layers are dropped at random under DistributedDataParallel, with reentrant checkpointing of those that are kept.

`find_unused_parameters` is there for the dropped ones, and does not see into reentrant checkpoints: their parameters
are ready when the forward ends, and once more in the backward pass.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, error, train

FAULT = {
    "source": "https://github.com/huggingface/transformers/issues/30113",
    "kind": "wrapper and sharding",
    "saw": "training with layer drop, DDP and checkpointing stopped with an error of DDP",
    "right": "dropped layers are computed and their results dropped, so that nothing is unused",
    "cause": ["CKPT104", "reentrant", "find_unused_parameters", "layerdrop"],
    "cure": "",
    "ranks": 2,
}
MENDED = False


class Wav2Vec2EncoderLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.feed_forward = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, hidden):
        hidden = hidden + self.attention(hidden, hidden, hidden, need_weights=False)[0]
        return hidden + self.feed_forward(hidden)


class Wav2Vec2Encoder(Switched):
    use_reentrant = True
    layerdrop = 0.3

    def __init__(self, width=16):
        super().__init__()
        self.feature_extractor = nn.Conv1d(1, width, 4, 4)
        self.layers = nn.ModuleList(Wav2Vec2EncoderLayer(width) for _ in range(4))
        self.lm_head = nn.Linear(width, 8)

    def run(self, layer, hidden):
        if self.gradient_checkpointing and self.training:
            return checkpoint(layer, hidden, use_reentrant=self.use_reentrant)
        return layer(hidden)

    def forward(self, values):
        hidden = self.feature_extractor(values.unsqueeze(1)).transpose(1, 2)
        for layer in self.layers:
            skipped = self.training and torch.rand([]) < self.layerdrop
            if MENDED:
                hidden = torch.where(torch.as_tensor(skipped), hidden, self.run(layer, hidden))
            else:
                if not skipped:
                    hidden = self.run(layer, hidden)
        return self.lm_head(hidden)


def make():
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    if MENDED:
        model = DistributedDataParallel(Wav2Vec2Encoder())
    else:
        model = DistributedDataParallel(Wav2Vec2Encoder(), find_unused_parameters=True)
    return model, {"values": torch.randn(2, 32)}


def symptom():
    return error(lambda: train(make, steps=4))


if __name__ == "__main__":
    train(make)
