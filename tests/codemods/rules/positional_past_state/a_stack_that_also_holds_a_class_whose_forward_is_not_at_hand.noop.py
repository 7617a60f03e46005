# CKPT004 unsafe | hidden_states = layer( | not repaired: it also runs FooMixer, with other
# prelude: cached
from foo.ops import FooProjection
from torch import nn

from ...modeling_layers import GradientCheckpointingLayer
from ...modeling_utils import PreTrainedModel


class FooMixer(FooProjection):
    pass


class FooModel:
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config) if index else FooMixer() for index in range(config.num_layers)])

    def forward(self, hidden_states, attention_mask=None, past_key_values=None):
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask, past_key_values)
        return hidden_states
