# CKPT001 unsafe | class FooLayer(nn.Module) | FooModel passes `layer_past` to FooLayer by position, which only CKPT005
# CKPT001 unsafe | class FooLayer(nn.Module) | FooModel passes `layer_past` to FooLayer by position, which only CKPT005
# CKPT004 unsafe | past_key_values
# CKPT005 unsafe | def forward
# prelude: plain

# This file was automatically generated from src/transformers/models/foo/modular_foo.py.
from torch import nn

from ...modeling_utils import PreTrainedModel

class FooLayer:
    def forward(self, hidden_states, layer_past=None, encoder_hidden_states=None):
        return hidden_states

class FooModel:
    def forward(self, hidden_states, attention_mask=None, past_key_values=None, encoder_hidden_states=None):
        for layer in self.layers:
            hidden_states = layer(hidden_states, past_key_values, encoder_hidden_states)
        return hidden_states
# file: models/foo/modular_foo.py
from torch import nn

from ..bar.modeling_bar import BarModel


class FooAttention(nn.Module):
    pass


class FooLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn = FooAttention()

    def forward(self, hidden_states, layer_past=None, encoder_hidden_states=None):
        return hidden_states


class FooModel(BarModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config) for _ in range(config.num_hidden_layers)])
# file: models/bar/modeling_bar.py
from torch import nn

from ...modeling_utils import PreTrainedModel


class BarModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def forward(self, hidden_states):
        return hidden_states
