# CKPT002 info | elif self.gradient_checkpointing | it is an elif
# prelude: plain

class FooModel:
    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            if attention_mask is None:
                hidden_states = layer(hidden_states)
            elif self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, attention_mask)
            else:
                hidden_states = layer(hidden_states, attention_mask)
        return hidden_states
