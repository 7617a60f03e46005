# CKPT002 unsafe | if
# prelude: gcl

class FooModel:
    def forward(self, hidden_states, attention_mask=None, past_key_values=None, use_cache=None):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, attention_mask)
            elif attention_mask is None:
                hidden_states = layer(hidden_states, attention_mask)
        return hidden_states
