"""Two LoRA adapters are trained in one step: the first's layers are recomputed with the second one active.

`set_adapter` is called before each forward, and one backward follows. Whatever is recomputed uses the adapter that was
set last.
"""

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, gradients, train

FAULT = {
    "source": "https://github.com/huggingface/peft/issues/2832",
    "kind": "adapters",
    "saw": "with checkpointing on, the adapter of the first forward is not trained as it is without",
    "right": "the recompute of a layer has the adapter of its forward",
    "cause": ["active adapter", "active_adapter", "set_adapter", "other adapter", "adapter was switched"],
    "cure": "",
    "held_out": True,
}
MENDED = False


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up_proj, self.down_proj = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.down_proj(nn.functional.gelu(self.up_proj(self.norm(x))))


class Encoder(Switched):
    def __init__(self, dim=16):
        super().__init__()
        self.inputs = nn.Linear(6, dim)
        self.layers = nn.ModuleList(Layer(dim) for _ in range(2))

    def forward(self, x):
        x = self.inputs(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.gradient_checkpointing else layer(x)
        return x


class Contrast(nn.Module):
    """Brings what one adapter makes of a query close to what the other makes of its document."""

    def __init__(self):
        super().__init__()
        config = LoraConfig(r=2, target_modules=["up_proj", "down_proj"], init_lora_weights=False)
        self.encoder = get_peft_model(Encoder(), config, adapter_name="query")
        self.encoder.add_adapter("document", config)

    def encode(self, name, x):
        self.encoder.set_adapter(name)
        for parameter_name, parameter in self.encoder.named_parameters():
            parameter.requires_grad_("lora_" in parameter_name)
        return self.encoder(x)

    def forward(self, queries, documents):
        if MENDED:
            query = checkpoint(self.encode, "query", queries, use_reentrant=False)
            document = checkpoint(self.encode, "document", documents, use_reentrant=False)
        else:
            query, document = self.encode("query", queries), self.encode("document", documents)
        return nn.functional.cross_entropy(query @ document.T / 4, torch.arange(len(queries)))


def off(model):
    model.encoder.get_base_model().gradient_checkpointing_disable()


def switch(model, mode):
    model.encoder.get_base_model().gradient_checkpointing = mode is not None


def make():
    torch.manual_seed(0)
    return Contrast(), {"queries": torch.randn(6, 6), "documents": torch.randn(6, 6)}


def symptom():
    return gradients(make, off)


if __name__ == "__main__":
    train(make)
