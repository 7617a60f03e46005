# CKPT002 unsafe | self._gradient | the test also asks for attention_mask is None
# prelude: gcl

class FooModel:
    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            hidden_states = (
                self._gradient_checkpointing_func(layer.__call__, hidden_states, attention_mask)
                if self.gradient_checkpointing and attention_mask is None
                else layer(hidden_states, attention_mask)
            )
        return hidden_states
