# CKPT002 info | if self.gradient_checkpointing | 
from other.models.llama import LlamaModel


class BarModel(LlamaModel):
    def forward(self, hidden_states, attention_mask):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, attention_mask)
            else:
                hidden_states = layer(hidden_states, attention_mask)
        return hidden_states
