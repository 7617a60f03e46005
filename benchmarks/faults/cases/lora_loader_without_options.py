"""The loader of a LoRA training switches checkpointing on by itself, without the options of the configuration.

They reach only the arguments of the trainer. The layers run in the library's own mode, reentrant, in which nothing
behind frozen embeddings gets a gradient.
"""

from dataclasses import dataclass, field

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, gradients, train

FAULT = {
    "source": "https://github.com/axolotl-ai-cloud/axolotl/commit/b1e3e1b25fb37ee6743292bc8e4e3b802ea7f334",
    "kind": "arguments lost",
    "saw": "use_reentrant in the configuration had no effect for LoRA, and adapters got no gradient",
    "right": "the loader passes gradient_checkpointing_kwargs",
    "cause": ["requires_grad", "reentrant"],
    "cure": "wrap",
}
MENDED = False
MODES = ("non_reentrant",) if MENDED else ("reentrant",)


@dataclass
class Settings:
    adapter: str = "lora"
    gradient_checkpointing: bool = True
    gradient_checkpointing_kwargs: dict = field(default_factory=lambda: {"use_reentrant": False})


class DecoderLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.q_proj, self.v_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(3))

    def forward(self, hidden):
        normed = self.norm(hidden)
        values = self.v_proj(normed)
        mixed = nn.functional.scaled_dot_product_attention(self.q_proj(normed), normed, values, is_causal=True)
        return hidden + self.o_proj(mixed)


class CausalLM(Switched):
    gradient_checkpointing = False
    use_reentrant = True

    def __init__(self, width=16):
        super().__init__()
        self.embed_tokens = nn.Embedding(32, width)
        self.layers = nn.ModuleList(DecoderLayer(width) for _ in range(3))
        self.lm_head = nn.Linear(width, 32, bias=False)

    def forward(self, input_ids, labels):
        hidden = self.embed_tokens(input_ids)
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden = checkpoint(layer, hidden, use_reentrant=self.use_reentrant)
            else:
                hidden = layer(hidden)
        return nn.functional.cross_entropy(self.lm_head(hidden)[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def load_model(settings):
    model = CausalLM()
    if settings.gradient_checkpointing:
        if MENDED:
            model.gradient_checkpointing_enable(settings.gradient_checkpointing_kwargs)
        else:
            model.gradient_checkpointing_enable()
    if settings.adapter == "lora":
        lora = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"])
        model = get_peft_model(model, lora)
    return model


def make():
    torch.manual_seed(0)
    ids = torch.randint(32, (2, 10))
    return load_model(Settings()), {"input_ids": ids, "labels": ids}


def symptom():
    return gradients(make)


if __name__ == "__main__":
    train(make)
