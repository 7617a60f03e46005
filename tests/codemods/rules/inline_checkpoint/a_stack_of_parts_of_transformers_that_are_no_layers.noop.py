# CKPT002 info | if self.gradient_checkpointing | 
from torch import nn
from transformers import LlamaModel
from transformers.models.llama.modeling_llama import LlamaMLP


class BarModel(LlamaModel):
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([LlamaMLP(config) for _ in range(2)])

    def forward(self, hidden_states, attention_mask):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, attention_mask)
            else:
                hidden_states = layer(hidden_states, attention_mask)
        return hidden_states
