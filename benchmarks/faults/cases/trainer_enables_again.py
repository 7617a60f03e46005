"""The trainer switches checkpointing on again, without options, and so back to the reentrant default.

The user had asked for the other mode. Embeddings are frozen and checkpoints reentrant then: of a classifier with LoRA
the head alone is trained, and the loss still falls.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, gradients, train

FAULT = {
    "source": "https://github.com/huggingface/transformers/issues/26221",
    "kind": "adapters",
    "saw": "the same LoRA run reached another accuracy with checkpointing than without",
    "right": "the training arguments carry gradient_checkpointing_kwargs",
    "cause": ["requires_grad", "reentrant"],
    "cure": "wrap",
}
MENDED = False
MODES = ("non_reentrant",) if MENDED else ("reentrant",)


class LoraLinear(nn.Module):
    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.lora_B(self.lora_A(x))


class RobertaLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.value = LoraLinear(nn.Linear(width, width)), LoraLinear(nn.Linear(width, width))
        self.output = nn.Linear(width, width).requires_grad_(False)

    def forward(self, x):
        mixed = nn.functional.scaled_dot_product_attention(self.query(x), x, self.value(x))
        return x + torch.tanh(self.output(mixed))


class RobertaForSequenceClassification(Switched):
    gradient_checkpointing = False

    def __init__(self, width=16):
        super().__init__()
        self.embeddings = nn.Embedding(32, width).requires_grad_(False)
        self.layer = nn.ModuleList(RobertaLayer(width) for _ in range(3))
        self.classifier = nn.Linear(width, 2)

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None):
        super().gradient_checkpointing_enable(gradient_checkpointing_kwargs or {"use_reentrant": True})

    def forward(self, input_ids, labels):
        x = self.embeddings(input_ids)
        for layer in self.layer:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(layer, x, use_reentrant=self.use_reentrant)
            else:
                x = layer(x)
        return nn.functional.cross_entropy(self.classifier(x[:, 0]), labels)


@dataclass
class TrainingArguments:
    gradient_checkpointing: bool = False
    gradient_checkpointing_kwargs: dict | None = None


class Trainer:
    def __init__(self, model, args):
        self.model = model.train()
        if args.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=args.gradient_checkpointing_kwargs)


def make():
    torch.manual_seed(0)
    model = RobertaForSequenceClassification()
    options = {"use_reentrant": False}
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    args = TrainingArguments(gradient_checkpointing=True, gradient_checkpointing_kwargs=options if MENDED else None)
    trainer = Trainer(model, args)
    return trainer.model, {"input_ids": torch.randint(32, (4, 8)), "labels": torch.tensor([0, 1, 1, 0])}


def symptom():
    return gradients(make)


if __name__ == "__main__":
    train(make)
