"""PEFT on a vision-language model: the hook on input embeddings is the language model's, the vision tower has none.

`enable_input_require_grads` follows `get_input_embeddings`. What the frozen patch embedding hands the vision layers
asks for no gradient, and reentrant checkpointing leaves their adapters without any.
"""

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from benchmarks.faults.script import gradients, train

FAULT = {
    "source": "https://github.com/modelscope/ms-swift/commit/821c6e8d726df20ef19fbfba460d7fa886778592",
    "kind": "adapters",
    "saw": "the vision tower of Ovis gets no gradients with gradient checkpointing",
    "right": "the output of the patch embedding requires gradients too",
    "cause": ["requires_grad", "require_grads", "reentrant"],
    "cure": "wrap",
    "held_out": True,
}
MENDED = False
MODES = ["reentrant"]


class OvisAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x, causal):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


class OvisLayer(GradientCheckpointingLayer):
    def __init__(self, dim, causal):
        super().__init__()
        self.norm, self.attn, self.causal = nn.LayerNorm(dim), OvisAttention(dim), causal
        self.fc = nn.Linear(dim, dim)

    def forward(self, hidden_states):
        hidden_states = hidden_states + self.attn(self.norm(hidden_states), self.causal)
        return hidden_states + torch.tanh(self.fc(hidden_states))


class OvisConfig(PretrainedConfig):
    model_type = "tiny_ovis"


class OvisVisual(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.patch_embedding = nn.Conv2d(3, dim, 4, 4)
        self.layers = nn.ModuleList(OvisLayer(dim, False) for _ in range(2))

    def forward(self, pixel_values):
        hidden_states = self.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return hidden_states


class Ovis(PreTrainedModel):
    config_class = OvisConfig
    supports_gradient_checkpointing = True

    def __init__(self, config, dim=16):
        super().__init__(config)
        self.visual_tokenizer = OvisVisual(dim)
        self.embed_tokens = nn.Embedding(32, dim)
        self.layers = nn.ModuleList(OvisLayer(dim, True) for _ in range(2))
        self.lm_head = nn.Linear(dim, 32)
        self.post_init()

    def get_input_embeddings(self):
        return self.embed_tokens

    def forward(self, pixel_values, input_ids):
        image = self.visual_tokenizer(pixel_values)
        hidden_states = torch.cat([image, self.embed_tokens(input_ids)], 1)
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        logits = self.lm_head(hidden_states[:, image.size(1) : -1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), input_ids[:, 1:].flatten())


def make():
    torch.manual_seed(0)
    base = Ovis(OvisConfig())
    base.gradient_checkpointing_enable({"use_reentrant": True})
    base.enable_input_require_grads()
    if MENDED:
        base.visual_tokenizer.patch_embedding.register_forward_hook(lambda _, args, output: output.requires_grad_())
    model = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj", "v_proj", "fc"], init_lora_weights=False))
    model.train()
    return model, {"pixel_values": torch.randn(2, 3, 8, 8), "input_ids": torch.arange(14).view(2, 7)}


def off(model):
    model.get_base_model().gradient_checkpointing_disable()


def symptom():
    return gradients(make, off)


if __name__ == "__main__":
    train(make)
