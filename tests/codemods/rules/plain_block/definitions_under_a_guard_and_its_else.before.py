# CKPT001 safe | class FooLayer(nn.Module) | FooLayer
# CKPT001 safe | class FooLayer(nn.Module) | FooLayer
from torch import nn

from ...modeling_utils import PreTrainedModel
from ...utils import is_fast_available


class FooAttention(nn.Module):
    pass


if is_fast_available():

    class FooLayer(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.self_attn = FooAttention()

        def forward(self, hidden_states, attention_mask=None):
            return hidden_states

else:

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
        self.layers = nn.ModuleList([FooLayer(config) for _ in range(config.num_hidden_layers)])

    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask)
        return hidden_states
