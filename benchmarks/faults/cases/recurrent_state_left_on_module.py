"""A recurrent block keeps its last state as an attribute, from which its recompute starts.

The state is for generation. Without a cache nobody clears it: the recompute of a checkpoint begins where the forward
has ended.
"""

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from benchmarks.faults.script import gradients, train

FAULT = {
    "source": "https://github.com/huggingface/transformers/pull/43203",
    "kind": "state twice",
    "saw": "the backward of RecurrentGemma is broken once non-reentrant checkpointing is the default",
    "right": "the state is reset where no cache is used",
    "cause": ["recurrent_states", "attribute of the module", "state of the module", "kept on the module"],
    "cure": "",
    "held_out": True,
}
MENDED = False
MODES = ["non_reentrant"]


class RgLru(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.decay, self.input_gate = nn.Parameter(torch.linspace(0, 2, dim)), nn.Linear(dim, dim)
        self.recurrent_states = None

    def forward(self, x, use_cache):
        if MENDED:
            self.recurrent_states = self.recurrent_states if use_cache else None
        state = torch.zeros_like(x[:, 0]) if self.recurrent_states is None else self.recurrent_states
        decay, gated, states = torch.sigmoid(self.decay), x * torch.sigmoid(self.input_gate(x)), []
        for each in gated.unbind(1):
            state = decay * state + (1 - decay) * each
            states.append(state)
        self.recurrent_states = state.detach()
        return torch.stack(states, 1)


class RecurrentBlock(GradientCheckpointingLayer):
    def __init__(self, dim):
        super().__init__()
        self.temporal_pre_norm = nn.RMSNorm(dim)
        self.linear_x, self.linear_y, self.linear_out = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.rg_lru = RgLru(dim)

    def forward(self, activations, use_cache=False):
        x = self.temporal_pre_norm(activations)
        x = self.rg_lru(self.linear_x(x), use_cache) * nn.functional.gelu(self.linear_y(x))
        return activations + self.linear_out(x)


class TinyConfig(PretrainedConfig):
    model_type = "tiny_recurrent"


class Griffin(PreTrainedModel):
    config_class = TinyConfig
    supports_gradient_checkpointing = True

    def __init__(self, config, dim=16):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(32, dim)
        self.layers = nn.ModuleList(RecurrentBlock(dim) for _ in range(2))
        self.lm_head = nn.Linear(dim, 32)
        self.post_init()

    def forward(self, input_ids, labels, use_cache=False):
        hidden_states = self.embed_tokens(input_ids)
        for layer in self.layers:
            hidden_states = layer(hidden_states, use_cache=use_cache)
        return nn.functional.cross_entropy(self.lm_head(hidden_states).flatten(0, 1), labels.flatten())


def make():
    torch.manual_seed(0)
    model = Griffin(TinyConfig())
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    ids = torch.randint(32, (2, 9))
    return model, {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}


def symptom():
    return gradients(make)


if __name__ == "__main__":
    train(make)
