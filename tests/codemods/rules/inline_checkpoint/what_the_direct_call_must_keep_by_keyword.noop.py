# CKPT002 unsafe | if self.gradient_checkpointing | keeps by keyword what the branch passes by position: its blocks (FooLayer, FooMixer)
# CKPT003 unsafe | hidden_states = layer(hidden_states, extra=extra) | `extra` by keyword
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer


class FooLayer(GradientCheckpointingLayer):
    def forward(self, hidden_states, extra=None):
        return hidden_states


class FooMixer(GradientCheckpointingLayer):
    def forward(self, hidden_states, scale=1.0, extra=None):
        return hidden_states


class FooModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer() if index else FooMixer() for index in range(config.num_layers)])
        self.gradient_checkpointing = False

    def forward(self, hidden_states, extra=None):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, extra)
            else:
                hidden_states = layer(hidden_states, extra=extra)
        return hidden_states
