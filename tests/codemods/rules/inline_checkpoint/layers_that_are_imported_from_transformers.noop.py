# CKPT002 unsafe | if self.gradient_checkpointing | transformers' own (LlamaDecoderLayer)
from torch import nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer


class BarModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([LlamaDecoderLayer(config, at) for at in range(2)])

    def forward(self, hidden_states, attention_mask):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, attention_mask)
            else:
                hidden_states = layer(hidden_states, attention_mask)
        return hidden_states
