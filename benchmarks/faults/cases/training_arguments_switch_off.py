"""A model is loaded with checkpointing on; the trainer switches it off, as its arguments have the default.

Before training, the wrapper puts the model in training mode with `args.gradient_checkpointing`, which nobody has set.
"""

import tempfile

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import TrainingArguments

from benchmarks.faults.script import Switched, memory, train

FAULT = {
    "source": "https://github.com/unslothai/unsloth/commit/2b06616a7eebe84535b9afc7ce4f37f45fe456e7",
    "kind": "never checkpointed",
    "saw": "memory rises in training though the model was prepared with checkpointing",
    "right": "the trainer keeps the mode in which the model was prepared",
    "cause": ["not checkpointed", "never checkpointed", "no block is checkpointed", "switched off"],
    "cure": "wrap",
    "held_out": True,
}
MENDED = False


class Layer(nn.Module):
    gradient_checkpointing = False

    def __init__(self, dim):
        super().__init__()
        self.norm, self.gate = nn.RMSNorm(dim), nn.Linear(dim, 4 * dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        normed = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))


class FastModel(Switched):
    def __init__(self, dim=16):
        super().__init__()
        self.embed_tokens = nn.Embedding(32, dim)
        self.layers = nn.ModuleList(Layer(dim) for _ in range(4))
        self.lm_head = nn.Linear(dim, 32)

    def for_training(self, use_gradient_checkpointing=True):
        self.prepared_with = use_gradient_checkpointing
        for module in self.modules():
            if hasattr(module, "gradient_checkpointing"):
                module.gradient_checkpointing = use_gradient_checkpointing
        return self.train()

    def forward(self, input_ids):
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return nn.functional.cross_entropy(self.lm_head(x[:, :-1]).flatten(0, 1), input_ids[:, 1:].flatten())


def prepare_for_train(model, args):
    if MENDED:
        return model.for_training(use_gradient_checkpointing=model.prepared_with)
    return model.for_training(use_gradient_checkpointing=args.gradient_checkpointing)


def make():
    torch.manual_seed(0)
    model = FastModel().for_training(use_gradient_checkpointing=True)
    args = TrainingArguments(output_dir=tempfile.gettempdir(), use_cpu=True, report_to="none")
    return prepare_for_train(model, args), {"input_ids": torch.randint(32, (4, 32))}


def symptom():
    return memory(make)


if __name__ == "__main__":
    train(make)
