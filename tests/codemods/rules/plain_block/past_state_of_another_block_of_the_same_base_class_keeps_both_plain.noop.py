# CKPT001 unsafe | class FooLayer(FooBaseLayer) | FooCross passes `layer_past` to FooCrossLayer by position
# CKPT001 unsafe | class FooCrossLayer(FooBaseLayer) | FooCross passes `layer_past`
# CKPT004 unsafe | past_key_values
# CKPT005 unsafe | def forward
from torch import nn

from ...modeling_utils import PreTrainedModel


class FooAttention(nn.Module):
    pass


class FooBaseLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn = FooAttention()


class FooLayer(FooBaseLayer):
    def forward(self, hidden_states, attention_mask=None):
        return hidden_states


class FooCrossLayer(FooBaseLayer):
    def forward(self, hidden_states, layer_past=None, encoder_hidden_states=None):
        return hidden_states


class FooCross(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooCrossLayer(config) for _ in range(config.num_hidden_layers)])

    def forward(self, hidden_states, past_key_values=None, encoder_hidden_states=None):
        for layer in self.layers:
            hidden_states = layer(hidden_states, past_key_values, encoder_hidden_states)
        return hidden_states


class FooModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config) for _ in range(config.num_hidden_layers)])

    def forward(self, hidden_states, attention_mask=None, past_key_values=None, encoder_hidden_states=None):
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask)
        return hidden_states
