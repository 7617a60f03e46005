from torch import nn

from ...modeling_layers import GradientCheckpointingLayer
from ...modeling_utils import PreTrainedModel


class FooPreTrainedModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def _set_gradient_checkpointing(self, enable=True, gradient_checkpointing_func=None):
        super()._set_gradient_checkpointing(enable, gradient_checkpointing_func)


class FooAttention(nn.Module):
    pass


class FooLayer(GradientCheckpointingLayer):
    def __init__(self, config):
        super().__init__()
        self.self_attn = FooAttention()

    def forward(self, hidden_states, attention_mask=None):
        return hidden_states


class FooModel(FooPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config) for _ in range(4)])

    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask)
        return hidden_states
