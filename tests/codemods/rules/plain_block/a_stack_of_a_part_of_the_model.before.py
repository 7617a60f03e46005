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


class FooEncoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layers = nn.ModuleList([FooLayer(config)])

    def forward(self, hidden_states):
        return self.layers[0](hidden_states)


class FooModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.encoder = FooEncoder(config)

    def forward(self, hidden_states, attention_mask=None):
        hidden_states = self.encoder(hidden_states)
        return hidden_states
