"""A vision tower is not checkpointed because its weights are frozen, and trained prompts run through all of it.

The default was `not freeze_vit`: the switch of checkpointing was derived from what is trained.
"""

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from benchmarks.faults.script import memory, train

FAULT = {
    "source": "https://github.com/modelscope/ms-swift/commit/86d4403fab4d2f2f5149f15588c37401d27484ea",
    "kind": "never checkpointed",
    "saw": "the vision tower keeps all of its activations although gradient_checkpointing is true",
    "right": "the tower follows gradient_checkpointing",
    "cause": ["switched off", "disabled", "not checkpointed", "no recompute", "off in"],
    "cure": "wrap",
}
MENDED = False
ARGUMENTS = {"gradient_checkpointing": True, "freeze_vit": True, "vit_gradient_checkpointing": None}


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, is_causal=False):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=is_causal))


class VisionBlock(GradientCheckpointingLayer):
    def __init__(self, width=24):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(width), Attention(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden_states):
        hidden_states = hidden_states + self.attn(self.norm(hidden_states))
        return hidden_states + self.mlp(hidden_states)


class DecoderLayer(GradientCheckpointingLayer):
    def __init__(self, width=16):
        super().__init__()
        self.self_attn, self.mlp = Attention(width), nn.Linear(width, width)

    def forward(self, hidden_states):
        hidden_states = hidden_states + self.self_attn(hidden_states, is_causal=True)
        return hidden_states + F.silu(self.mlp(hidden_states))


class Base(PreTrainedModel):
    config_class = PreTrainedConfig
    supports_gradient_checkpointing = True


class VisionTower(Base):
    main_input_name = "pixel_values"

    def __init__(self, config):
        super().__init__(config)
        self.patch_embed = nn.Linear(12, 24)
        self.prompts = nn.Parameter(torch.zeros(4, 24))
        self.blocks = nn.ModuleList(VisionBlock() for _ in range(6))
        self.post_init()

    def forward(self, pixel_values):
        prompts = self.prompts.expand(len(pixel_values), -1, -1)
        hidden_states = torch.cat([prompts, self.patch_embed(pixel_values)], 1)
        for block in self.blocks:
            hidden_states = block(hidden_states)
        return hidden_states


class MultimodalModel(Base):
    def __init__(self, config):
        super().__init__(config)
        self.visual, self.aligner = VisionTower(config), nn.Linear(24, 16)
        self.embed_tokens, self.lm_head = nn.Embedding(32, 16), nn.Linear(16, 32)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(2))
        self.post_init()

    def get_input_embeddings(self):
        return self.embed_tokens

    def forward(self, input_ids, pixel_values):
        image = self.aligner(self.visual(pixel_values).mean(1, keepdim=True))
        hidden_states = self.embed_tokens(input_ids) + image
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return F.cross_entropy(self.lm_head(hidden_states).flatten(0, 1), input_ids.flatten())


def prepare(model, gradient_checkpointing, freeze_vit, vit_gradient_checkpointing):
    if vit_gradient_checkpointing is None:
        vit_gradient_checkpointing = gradient_checkpointing if MENDED else not freeze_vit
    for name, parameter in model.visual.named_parameters():
        parameter.requires_grad_(not freeze_vit or name == "prompts")
    if gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if not vit_gradient_checkpointing:
        model.visual.gradient_checkpointing_disable()


def make():
    torch.manual_seed(0)
    model = MultimodalModel(PreTrainedConfig()).train()
    prepare(model, **ARGUMENTS)
    return model, {"input_ids": torch.randint(32, (2, 6)), "pixel_values": torch.randn(2, 48, 12)}


def symptom():
    return memory(make)


if __name__ == "__main__":
    train(make)
