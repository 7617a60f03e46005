# CKPT002 info | if self.gradient_checkpointing | the class of layer.__call__ cannot be determined (GPTBigCodeBlock)
from torch import nn
from transformers import PreTrainedModel
from transformers.models.gpt_bigcode.modeling_gpt_bigcode import GPTBigCodeBlock


class BarModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([GPTBigCodeBlock(config) for _ in range(2)])

    def forward(self, hidden_states, attention_mask):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, attention_mask)
            else:
                hidden_states = layer(hidden_states, attention_mask)
        return hidden_states
