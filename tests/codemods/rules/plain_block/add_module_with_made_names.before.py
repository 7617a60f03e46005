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
        for index in range(config.num_hidden_layers):
            self.add_module(f"layer{index}", FooLayer(config))

    def forward(self, hidden_states, attention_mask=None):
        for index in range(self.config.num_hidden_layers):
            hidden_states = getattr(self, f"layer{index}")(hidden_states, attention_mask)
        return hidden_states
