"""The switch of a CLIP model does not reach its image trunk: the class in between does not pass it on.

Model, wrapper and trunk each have their own; the wrapper inherits one that sets a flag which it never reads.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import memory, train

FAULT = {
    "source": "https://github.com/mlfoundations/open_clip/commit/7e5546d1d1f74c1f9bdc1859508bc37f40dda326",
    "kind": "never checkpointed",
    "saw": "set_grad_checkpointing does nothing for a CLIP model with a timm image tower",
    "right": "the wrapper switches the trunk",
    "cause": ["not checkpointed", "never checkpointed", "no block is checkpointed", "switched off"],
    "cure": "wrap",
    "held_out": True,
}
MENDED = False


class Tower(nn.Module):
    grad_checkpointing = False

    def set_grad_checkpointing(self, enable=True):
        self.grad_checkpointing = enable


class ConvBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.depthwise = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.norm = nn.GroupNorm(1, dim)
        self.fc1, self.fc2 = nn.Conv2d(dim, 4 * dim, 1), nn.Conv2d(4 * dim, dim, 1)

    def forward(self, x):
        return x + self.fc2(nn.functional.gelu(self.fc1(self.norm(self.depthwise(x)))))


class Trunk(Tower):
    def __init__(self, dim=8):
        super().__init__()
        self.stem = nn.Conv2d(3, dim, 2, 2)
        self.blocks = nn.Sequential(*(ConvBlock(dim) for _ in range(4)))

    def forward(self, images):
        x = self.stem(images)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.grad_checkpointing else block(x)
        return x.mean((2, 3))


class TimmModel(Tower):
    def __init__(self, dim=8, embed_dim=12):
        super().__init__()
        self.trunk = Trunk(dim)
        self.head = nn.Linear(dim, embed_dim)

    if MENDED:

        def set_grad_checkpointing(self, enable=True):
            self.trunk.set_grad_checkpointing(enable)

    def forward(self, images):
        return self.head(self.trunk(images))


class CLIP(nn.Module):
    def __init__(self):
        super().__init__()
        self.visual = TimmModel()
        self.text = nn.EmbeddingBag(32, 12)

    def set_grad_checkpointing(self, enable=True):
        self.visual.set_grad_checkpointing(enable)

    def forward(self, images, texts):
        image = nn.functional.normalize(self.visual(images), dim=-1)
        text = nn.functional.normalize(self.text(texts), dim=-1)
        return nn.functional.cross_entropy(10 * image @ text.T, torch.arange(len(images)))


def off(model):
    model.set_grad_checkpointing(False)


def switch(model, mode):
    model.set_grad_checkpointing(mode is not None)


def make():
    torch.manual_seed(0)
    model = CLIP()
    model.set_grad_checkpointing()
    return model, {"images": torch.randn(4, 3, 16, 16), "texts": torch.randint(32, (4, 5))}


def symptom():
    return memory(make, off)


if __name__ == "__main__":
    train(make, lr=0.01)
