# file: models/foo/modeling_foo.py
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer


class FooAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, hidden_states):
        return self.proj(hidden_states).tanh()


class FooLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = FooAttention()

    def forward(self, hidden_states, encoder_hidden_states=None):
        hidden_states = hidden_states + self.self_attn(hidden_states)
        return hidden_states if encoder_hidden_states is None else hidden_states * encoder_hidden_states


class FooModel(PreTrainedModel):
    config_class = PretrainedConfig
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.encoder = nn.Linear(4, 4)
        self.layers = nn.ModuleList([FooLayer() for _ in range(3)])
        self.gradient_checkpointing = False

    def forward(self, hidden_states):
        encoded = self.encoder(hidden_states)
        for layer in self.layers:
            hidden_states = layer(hidden_states, encoded)
        return hidden_states
