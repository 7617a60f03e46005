"""Input gradients are enabled on an embedding that is never called: encoder and decoder have modules of their own.

The three share a weight, not a forward. The hook stays silent, and reentrant checkpoints give LoRA no gradients.
"""

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from benchmarks.faults.script import cured, error, loss_of, train

FAULT = {
    "source": "https://github.com/huggingface/peft/issues/522",
    "kind": "adapters",
    "saw": "LongT5 with LoRA and checkpointing fails, though enable_input_require_grads has been called",
    "right": "the embeddings of encoder and decoder have the hook",
    "cause": ["requires_grad", "require_grads", "reentrant"],
    "cure": "wrap",
    "held_out": True,
}
MENDED = False
MODES = ["reentrant"]


class T5Layer(GradientCheckpointingLayer):
    def __init__(self, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q, self.k, self.v, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, hidden_states, encoder_hidden_states=None):
        x = self.norm1(hidden_states)
        source = x if encoder_hidden_states is None else torch.cat([encoder_hidden_states, x], 1)
        attended = nn.functional.scaled_dot_product_attention(self.q(x), self.k(source), self.v(source))
        hidden_states = hidden_states + attended
        return hidden_states + self.wo(torch.relu(self.norm2(hidden_states)))


class TinyT5Config(PretrainedConfig):
    model_type = "tiny_long_t5"


class T5Stack(nn.Module):
    def __init__(self, shared):
        super().__init__()
        self.embed_tokens = nn.Embedding(*shared.weight.shape)
        self.embed_tokens.weight = shared.weight
        self.block = nn.ModuleList(T5Layer(shared.embedding_dim) for _ in range(2))

    def forward(self, input_ids, encoder_hidden_states=None):
        hidden_states = self.embed_tokens(input_ids)
        for block in self.block:
            hidden_states = block(hidden_states, encoder_hidden_states)
        return hidden_states


class TinyT5(PreTrainedModel):
    config_class = TinyT5Config
    supports_gradient_checkpointing = True

    def __init__(self, config, dim=16):
        super().__init__(config)
        self.shared = nn.Embedding(32, dim)
        self.encoder, self.decoder = T5Stack(self.shared), T5Stack(self.shared)
        self.lm_head = nn.Linear(dim, 32)
        self.post_init()

    def get_input_embeddings(self):
        return self.shared

    def forward(self, input_ids, labels):
        decoded = self.decoder(labels.roll(1, 1), self.encoder(input_ids))
        return nn.functional.cross_entropy(self.lm_head(decoded).flatten(0, 1), labels.flatten())


def require(module, args, output):
    output.requires_grad_(True)


def make():
    torch.manual_seed(0)
    base = TinyT5(TinyT5Config())
    base.gradient_checkpointing_enable({"use_reentrant": True})
    base.enable_input_require_grads()
    if MENDED:
        for stack in (base.encoder, base.decoder):
            stack.embed_tokens.register_forward_hook(require)
    model = get_peft_model(base, LoraConfig(r=2, target_modules=["q", "v"], init_lora_weights=False))
    model.train()
    return model, {"input_ids": torch.randint(32, (2, 7)), "labels": torch.randint(32, (2, 5))}


def off(model):
    model.get_base_model().gradient_checkpointing_disable()


def step():
    model, batch = make()
    cured(model)
    loss_of(model(**batch)).backward()


def symptom():
    return error(step)


if __name__ == "__main__":
    train(make)
