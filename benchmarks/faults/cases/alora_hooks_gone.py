"""The offsets of activated LoRA reach its layers by hooks that are removed when the forward ends.

The recompute in the backward pass finds no hooks, so that the offsets are None: the adapter's branch is left out, and
its parameters get no gradient.
"""

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from benchmarks.faults.script import gradients, train

FAULT = {
    "source": "https://github.com/huggingface/peft/issues/2826",
    "kind": "adapters",
    "saw": "adapters got zero gradients, without any error",
    "right": "the offsets are an argument of the layers",
    "cause": ["hook", "recomput"],
    "cure": "",
}
MENDED = False
MODES = ("reentrant",)


class ALoraLinear(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x, alora_offsets=None):
        result = self.base_layer(x)
        if alora_offsets is None:
            return result
        positions = torch.arange(x.shape[1]).expand(x.shape[:2])
        active = positions >= x.shape[1] - alora_offsets.unsqueeze(1)
        return result + active.unsqueeze(-1) * self.lora_B(self.lora_A(x))


class TinyLayer(GradientCheckpointingLayer):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.q_proj, self.v_proj = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, hidden_states, **kwargs):
        normed = self.norm(hidden_states)
        q, v = self.q_proj(normed, **kwargs), self.v_proj(normed, **kwargs)
        return hidden_states + nn.functional.scaled_dot_product_attention(q, normed, v, is_causal=True)


class TinyForCausalLM(PreTrainedModel):
    config_class = PreTrainedConfig
    supports_gradient_checkpointing = True

    def __init__(self, config, width=16):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(32, width)
        self.layers = nn.ModuleList(TinyLayer(width) for _ in range(3))
        self.lm_head = nn.Linear(width, 32)
        self.post_init()

    def forward(self, input_ids, labels, **kwargs):
        hidden_states = self.embed_tokens(input_ids)
        for layer in self.layers:
            hidden_states = layer(hidden_states, **kwargs)
        return nn.functional.cross_entropy(self.lm_head(hidden_states).flatten(0, 1), labels.flatten())


class ActivatedLoraModel(nn.Module):
    def __init__(self, base, invocation_token):
        super().__init__()
        self.base_model, self.invocation_token = base.requires_grad_(False), invocation_token
        for layer in base.layers:
            layer.q_proj, layer.v_proj = ALoraLinear(layer.q_proj), ALoraLinear(layer.v_proj)

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None):
        self.base_model.gradient_checkpointing_enable(gradient_checkpointing_kwargs)

    def gradient_checkpointing_disable(self):
        self.base_model.gradient_checkpointing_disable()

    def forward(self, input_ids, labels):
        offsets = input_ids.shape[1] - (input_ids == self.invocation_token).int().argmax(1)
        if MENDED:
            return self.base_model(input_ids, labels, alora_offsets=offsets)
        else:

            def add_offsets(module, args, kwargs):
                return args, {**kwargs, "alora_offsets": offsets}

            layers = [module for module in self.modules() if isinstance(module, ALoraLinear)]
            hooks = [layer.register_forward_pre_hook(add_offsets, with_kwargs=True) for layer in layers]
            try:
                return self.base_model(input_ids, labels)
            finally:
                for hook in hooks:
                    hook.remove()


def make():
    torch.manual_seed(0)
    model = ActivatedLoraModel(TinyForCausalLM(PreTrainedConfig()), invocation_token=7).train()
    model.gradient_checkpointing_enable({"use_reentrant": True})
    ids = torch.randint(8, 32, (2, 12))
    ids[0, 5] = ids[1, 3] = 7
    return model, {"input_ids": ids, "labels": ids.roll(-1, 1)}


def symptom():
    return gradients(make)


if __name__ == "__main__":
    train(make)
