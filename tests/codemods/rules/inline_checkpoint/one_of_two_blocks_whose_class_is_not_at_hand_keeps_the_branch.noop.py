# CKPT002 info | if | cannot be determined
# prelude: plain

from torch import nn

from ...modeling_utils import PreTrainedModel
from ..bar.modeling_bar import BarLayer

class FooModel:
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config) for _ in range(4)])
        self.others = nn.ModuleList([BarLayer(config) for _ in range(4)])

    def forward(self, hidden_states, attention_mask=None):
        for layer, other in zip(self.layers, self.others):
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, attention_mask)
                hidden_states = self._gradient_checkpointing_func(other.__call__, hidden_states, attention_mask)
            else:
                hidden_states = layer(hidden_states, attention_mask)
                hidden_states = other(hidden_states, attention_mask)
        return hidden_states
