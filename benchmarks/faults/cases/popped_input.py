"""A block takes its input out of a list to free it early: the reentrant checkpoint sees a list, and no tensor.

What is inside a container is no input of the checkpoint's autograd function, so that the blocks get no gradient;
only the decoder behind the last of them is trained.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, gradients, train

FAULT = {
    "source": "https://github.com/PriorLabs/TabPFN/pull/1138",
    "kind": "arguments lost",
    "saw": "fine-tuning trains no parameter of the transformer; with the other variant, pop from an empty list",
    "right": "the input of a block is a tensor",
    "cause": ["CKPT007", "container", "inside a list", "in a list"],
    "cure": "",
}
MENDED = False


class PerFeatureLayer(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.attn_features = nn.MultiheadAttention(width, 2, batch_first=True)
        self.attn_items = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, holder):
        x = holder if MENDED else holder.pop(0)
        x = x + self.attn_features(x, x, x, need_weights=False)[0]
        y = x.transpose(0, 1)
        x = x + self.attn_items(y, y, y, need_weights=False)[0].transpose(0, 1)
        return x + self.mlp(x)


class TabularModel(Switched):
    use_reentrant = True

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(1, 12)
        self.layers = nn.ModuleList(PerFeatureLayer() for _ in range(3))
        self.decoder = nn.Linear(12, 2)

    def forward(self, table, labels):
        x = self.encoder(table.unsqueeze(-1))
        for layer in self.layers:
            state = x if MENDED else [x]
            del x
            if self.gradient_checkpointing:
                x = checkpoint(layer, state, use_reentrant=self.use_reentrant)
            else:
                x = layer(state)
        return nn.functional.cross_entropy(self.decoder(x.mean(1)), labels)


def make():
    torch.manual_seed(0)
    return TabularModel(), {"table": torch.randn(10, 5), "labels": torch.arange(10) % 2}


def symptom():
    return gradients(make)


if __name__ == "__main__":
    train(make)
