"""Inputs are made to require gradients for the first trained module alone: a second frozen tower gets no gradients.

The helper walks the parameters and stops at the first that is trained. The blocks of the vision tower, adapters on a
frozen base like those of the language model, still get inputs without gradients, under reentrant checkpointing.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, gradients, train

FAULT = {
    "source": "https://github.com/unslothai/unsloth-zoo/commit/411cdc3921a303268af49a465ba0ca96dbd09c93",
    "kind": "adapters",
    "saw": "the adapters of the vision tower stay at zero, those of the language model train",
    "right": "the inputs of every tower with trained parameters require gradients",
    "cause": ["requires_grad", "require_grad", "reentrant"],
    "cure": "wrap",
    "held_out": True,
}
MENDED = False


class Adapted(nn.Module):
    def __init__(self, dim, rank=2):
        super().__init__()
        self.base_layer = nn.Linear(dim, dim).requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(rank, dim) / 4)
        self.lora_B = nn.Parameter(torch.randn(dim, rank) / 4)

    def forward(self, x):
        return self.base_layer(x) + x @ self.lora_A.T @ self.lora_B.T


class Tower(nn.Module):
    def __init__(self, embed, dim, depth):
        super().__init__()
        self.embed = embed.requires_grad_(False)
        self.norm = nn.LayerNorm(dim).requires_grad_(False)
        self.blocks = nn.ModuleList(nn.Sequential(Adapted(dim), nn.GELU(), Adapted(dim)) for _ in range(depth))

    def forward(self, inputs, more=None, checkpointing=False):
        x = self.norm(self.embed(inputs))
        x = x if more is None else torch.cat([more, x], 1)
        for block in self.blocks:
            x = x + (checkpoint(block, x, use_reentrant=True) if checkpointing else block(x))
        return x


class Gemma(Switched):
    use_reentrant = True

    def __init__(self, dim=16):
        super().__init__()
        self.language_model = Tower(nn.Embedding(32, dim), dim, 2)
        self.vision_tower = Tower(nn.Linear(12, dim), dim, 2)
        self.lm_head = nn.Linear(dim, 32).requires_grad_(False)

    def forward(self, pixels, ids):
        image = self.vision_tower(pixels, checkpointing=self.gradient_checkpointing)
        x = self.language_model(ids, image, checkpointing=self.gradient_checkpointing)[:, image.size(1) :]
        return nn.functional.cross_entropy(self.lm_head(x[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def require(module, args, output):
    output.requires_grad_()


def require_input_gradients(model):
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    for tower in {name.split(".")[0] for name in (trained if MENDED else trained[:1])}:
        model.get_submodule(tower).norm.register_forward_hook(require)


def make():
    torch.manual_seed(0)
    model = Gemma()
    require_input_gradients(model)
    return model, {"pixels": torch.randn(2, 4, 12), "ids": torch.arange(16).view(2, 8)}


def symptom():
    return gradients(make)


if __name__ == "__main__":
    train(make)
