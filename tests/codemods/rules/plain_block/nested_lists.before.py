# CKPT001 safe | class FooLayer(nn.Module)
from torch import nn

from ...modeling_utils import PreTrainedModel


class FooAttention(nn.Module):
    pass


class FooLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn = FooAttention()

    def forward(self, hidden_states, attention_mask=None):
        return hidden_states


class FooModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([nn.ModuleList([FooLayer(config) for _ in range(2)]) for _ in range(4)])

    def forward(self, hidden_states, attention_mask=None):
        for group in self.layers:
            for layer in group:
                hidden_states = layer(hidden_states, attention_mask)
        return hidden_states
