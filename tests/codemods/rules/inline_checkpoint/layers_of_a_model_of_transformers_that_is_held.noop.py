# CKPT002 unsafe | if self.gradient_checkpointing | transformers' own (Qwen2Model)
from transformers import PreTrainedModel, Qwen2Model


class BarModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.text = Qwen2Model(config)

    def forward(self, hidden_states, attention_mask):
        for layer in self.text.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, attention_mask)
            else:
                hidden_states = layer(hidden_states, attention_mask)
        return hidden_states
