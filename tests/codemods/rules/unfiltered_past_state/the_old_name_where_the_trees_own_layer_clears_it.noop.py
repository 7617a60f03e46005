# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, past_key_value=None):
        return hidden_states

class FooModel:
    def forward(self, hidden_states, attention_mask=None, past_key_values=None, encoder_hidden_states=None, **kwargs):
        for layer in self.layers:
            hidden_states = layer(hidden_states, past_key_value=past_key_values)
        return hidden_states
# file: modeling_layers.py
from torch import nn


class GradientCheckpointingLayer(nn.Module):
    def __call__(self, *args, **kwargs):
        for name in ("use_cache",):
            pass
        if "past_key_values" in kwargs:
            kwargs["past_key_values"] = None
        if "past_key_value" in kwargs:
            kwargs["past_key_value"] = None
        return super().__call__(*args, **kwargs)
