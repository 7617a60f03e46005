# CKPT001 safe | class BarLayer(nn.Module)
from torch import nn

from ...modeling_utils import PreTrainedModel
from ..bar.modeling_bar import BarLayer


class FooModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([BarLayer(config) for _ in range(4)])

    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask)
        return hidden_states
# file: models/bar/modeling_bar.py
from torch import nn

from ...activations import ACT2FN


class FooAttention(nn.Module):
    pass


class BarLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn = FooAttention()

    def forward(self, hidden_states, attention_mask=None):
        return hidden_states
